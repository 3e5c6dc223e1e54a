"""What crosses process borders: messages, signatures and the ports that backends, networks and trainers fill.

Here belongs what is said, as types and as bytes; `line` is what carries it between a client and a server. The bytes
of the record, of headers and of signed gossip stand in `psyche.core.encoding`.
"""
