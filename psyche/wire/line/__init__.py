"""A TCP connection between two of this project's processes: TLS, frames, who is at the other end, and fair shares.

Here belongs what every such line needs whatever is said on it. The messages themselves stand in `psyche.wire`, and
the lines between clients in `psyche.network`.
"""
