"""A chain in a box: Solana's JSON-RPC and WebSocket around a virtual machine in this process, for runs on one machine.

`chain` opens one. Behind it `bank` executes transactions and counts slots, `web` serves the network, `calls` reads
requests, a module for each subject answers them, and `hub` tells subscribers. It needs the extra `solana`.

It is one fork that nobody votes on: all commitments read the same state, only the reported status climbs with slots.
"""
