"""The TCP backend of the coordinator: its message handling, its journal, and the connections of its clients.

`handler` processes requests without I/O; `server` runs it on trio. The client's side of the connection is in
`psyche.backends.tcp`, the rules of a run in `psyche.core`.
"""
