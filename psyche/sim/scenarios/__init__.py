"""What is to be simulated, as data: built in code, read from TOML, drawn from a seed, made small.

Belongs here: a scenario, its checks, and how people write it and see it again. Does not: anything that looks into a
running world.
"""
