"""The transitions of a run's record: the table of messages (`apply`), the table of phases, one module per subject.

What follows from a record without changing it is in `state` and in `committee`.
"""
