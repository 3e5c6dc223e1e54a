"""The clients' and owners' side of the connection to a coordinator's home: `tcp` to the TCP server.

The homes themselves are elsewhere (`psyche.server`), and so is what crosses the line (`psyche.wire`).
"""
