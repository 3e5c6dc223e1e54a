"""The invariants that must hold at every event of a simulated world, and the record that events are checked against.

Belongs here: checks that compare what machines do with the journal. Does not: the figures that one scenario must
reach; those are judges in `tests/scenarios`.
"""
