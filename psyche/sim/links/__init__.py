"""The links between the machines of a world; `network.memory` simulates each one, and the in-memory node shares them.

Belongs here: how the two ends and the faults determine a link, and what uses links besides the node's own streams.
Does not: when a fault happens.
"""
