"""The clients' and owners' side of the connection to a coordinator's backend: `tcp` to the TCP server.

The backends themselves are elsewhere (`psyche.server`), and so is what crosses the line (`psyche.wire`).
"""
