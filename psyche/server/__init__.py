"""The TCP home of the coordinator: its message handling, its journal, and the connections of its clients.

Here belongs what the server's process does for a run: `handler` without I/O, `server` as the trio rim around it. The
client's side of the line stands in `psyche.backends.tcp`, the rules of a run in `psyche.core`.
"""
