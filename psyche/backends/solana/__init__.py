"""The home of a run on Solana, as clients and owners reach it: over RPC endpoints that may be slow, stale or dead.

`link` says what the backend needs of a chain. `rpc` is that over the network; the simulator has a chain of its own.
Building instructions and reading accounts is `psyche.chain`'s; what is a rule of the protocol stays in `psyche.core`.
"""
