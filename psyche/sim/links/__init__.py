"""What machines of a world are joined by; `network.links` plays the lines, which the in-memory node shares.

Belongs here: what the two ends and the faults make of a line, and what runs over lines beside the node's own streams.
Does not: when a fault happens.
"""
