"""What must hold at every event of a simulated world, and the record that it is held against.

Belongs here: checks that compare what machines do with what the journal says. Does not: figures that one scenario must
reach; those are judges in `tests/scenarios`.
"""
