"""A chain in simulated time: the second backend of a simulated run.

`blocks` is the ledger, which applies the state machine itself and needs no virtual machine. `endpoints` are what a
client sees of it, each with its own delay and faults. Belongs here: how a chain and its endpoints behave. Does not:
what a client makes of their answers; that is the real backend's business.
"""
