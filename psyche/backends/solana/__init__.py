"""A run on Solana, as clients and owners reach it: over RPC endpoints that may be slow, stale or dead.

`interface` is what the programs' IDLs say: it builds instructions and reads accounts, events and errors. `programs`
puts the programs on a chain and checks which ones are there. `link` says what the backend needs of a chain; `rpc` is
that over the network, and the simulator has a chain of its own. What is a rule of the protocol stays in `psyche.core`.
"""
