"""The backends of a simulated run: what keeps its record, and how clients reach it.

Belongs here: what a world needs of a backend, for each backend. Does not: the client, which is the same for all.
"""
