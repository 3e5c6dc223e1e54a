"""Scenarios as data: built in code, read from TOML, drawn from a seed, shrunk.

Belongs here: a scenario, its checks, and how people write and replay it. Does not: anything that inspects a
running world.
"""
