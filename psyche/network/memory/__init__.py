"""The in-memory twin of the libp2p node, on simulated links; simulated TCP connections use these links too.

Belongs here: delay, loss, order and bandwidth of simulated traffic. Does not: what a node does with what arrives
(`network.base`), and when a link fails (`sim`).
"""
