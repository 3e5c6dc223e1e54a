"""`psyche rewards`: what a run on Solana pays its members."""
