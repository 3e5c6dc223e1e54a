"""Lamports and tokens for wallets: from a faucet, from a mint, and where tokens are held."""
