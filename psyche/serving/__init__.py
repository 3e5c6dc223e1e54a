"""`psyche model serve`: OpenAI's API before an engine that computes the answers, which is a child on a loopback port.

This process is the gate: it judges requests, names the weights of each answer, and changes engines when weights change.
It loads no torch.
"""
