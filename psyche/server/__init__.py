"""The TCP home of the coordinator: server, journal, and the client's side of it."""
