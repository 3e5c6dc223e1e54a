"""Client connections: presence, pushes and replies, limits, and how connections end.

This package keeps the state per connection or client. Framing and encoding are in `psyche.wire`; what a request does
to the run is in `server.handler`.
"""
