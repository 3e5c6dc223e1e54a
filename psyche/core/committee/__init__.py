"""What a round's seed determines (elections, assignments), and what every client concludes from witness reports.

This package holds what each client computes from the record and the messages it has received. Code that changes the
record is in `rules`.
"""
