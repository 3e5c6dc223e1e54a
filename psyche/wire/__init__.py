"""The interfaces between processes: messages, signatures, and the ports that backends, networks and trainers implement.

This package defines messages as types and as bytes; `line` carries them between a client and a server. The encodings
of the record, of headers and of signed gossip are in `psyche.core.encoding`.
"""
