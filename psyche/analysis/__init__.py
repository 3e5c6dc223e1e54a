"""Where the time of a run went, read from its event log: of a simulated run or of a real one.

Belongs here: accounts, pictures and listings of events. Does not: whatever needs a simulated world or a client.
"""
