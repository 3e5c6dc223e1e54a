"""Solana's RPC, as a client needs it: several endpoints, of which some may be slow, stale or dead.

`transport` asks one endpoint once, `client` asks them in their order until one has answered. `replies` reads what they
answer. `sender` brings a transaction onto the chain, `transaction` builds it. `watch` follows an account over all
endpoints at once. `run_link` is what a member uses of all that.
"""
