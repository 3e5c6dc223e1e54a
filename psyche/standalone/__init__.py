"""psyche train: one process, no network."""
