"""The TCP home of the coordinator: server and journal. The client's side of it stands in `psyche.backends.tcp`."""
