"""TCP connections between two processes of this project: TLS, frames, authentication, and fair shares.

This package holds what every such connection needs, whatever messages it carries. The messages are defined in
`psyche.wire`; connections between clients are in `psyche.network`.
"""
