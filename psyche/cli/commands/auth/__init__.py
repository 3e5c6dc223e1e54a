"""`psyche auth`: who may join the runs of a join authority on Solana."""
