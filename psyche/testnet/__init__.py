"""`psyche local-testnet`: starts a server and its clients as processes on one machine, watches and reports.

Whole runs in simulated time belong to `psyche.sim`.
"""
