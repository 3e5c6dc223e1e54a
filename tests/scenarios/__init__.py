"""Named scenarios: each is a scenario of any size, and a judge of its outcome.

`scripts/named_scenarios.py` plays them at full size, `test_named.py` small. Belongs here: scenarios, their builders
and their judges.
Does not: invariants, which hold in every simulated run and are part of `psyche.sim`.
"""
