"""Where the time of a run went, read from its event log: of a simulated run or of a real one.

This package has accounts, pictures and listings of events. Nothing here needs a simulated world or a client.
"""
