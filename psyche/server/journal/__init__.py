"""What happened to the run, on disk: the journal, its records and snapshots, reading them back, and what was lost.

Here belongs what a restart depends on (K1, K2). What the records mean for the run is said by `psyche.core.rules`.
"""
