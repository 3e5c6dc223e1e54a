"""What changes a run's record, and when: the table of messages (`apply`), the table of phases, and a file per subject.

What follows from a record without changing it stands in `state` and in `committee`.
"""
