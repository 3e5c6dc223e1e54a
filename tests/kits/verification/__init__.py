"""Members of verified runs: what honest ones show, and clients that cheat."""
