"""Named scenarios: each row is a scenario of any size, and a judge of its outcome.

`scripts/rows.py` plays them at full size, `test_named.py` small. Belongs here: rows, their builders and their judges.
Does not: invariants, which hold in every simulated run and are part of `psyche.sim`.
"""
