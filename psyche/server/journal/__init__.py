"""The journal of a run on disk: records and snapshots, recovery, and handling of lost records.

A restart depends on this package (K1, K2). `psyche.core.rules` defines what the records mean for the run.
"""
