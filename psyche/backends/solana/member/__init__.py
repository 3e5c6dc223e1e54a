"""A member's part of a run on a chain: it follows the account, ticks, sends and joins, over an `RpcLink`."""
