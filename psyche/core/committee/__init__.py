"""What follows from a round's seed: who is elected, who trains what; and what everybody concludes from the reports.

Here belongs what each client computes for itself from the record and what it has heard, and nothing that changes the
record: that stands in `rules`.
"""
