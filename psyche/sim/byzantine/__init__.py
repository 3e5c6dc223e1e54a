"""Dishonest members: small programs that sit between an honest engine and its ports to the server and the peers.

Belongs here: what such a program sends in place of its engine's messages. Does not: how honest members and the server
react to it; `invariants` judges that.
"""
