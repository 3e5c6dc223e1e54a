"""`psyche train`: training in one process, without a network."""
