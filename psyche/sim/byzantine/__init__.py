"""Dishonest members: small programs beside an honest engine, at its ports to the server and to the peers.

Belongs here: what such a program says instead of its engine. Does not: what honest members and the server make of it,
which `invariants` judges.
"""
