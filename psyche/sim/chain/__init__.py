"""A chain in simulated time: what clients see of `localchain.core_chain`, each endpoint with its own delay and faults.

Belongs here: how endpoints behave. Does not: what a client makes of their answers; that is the real backend's business.
"""
