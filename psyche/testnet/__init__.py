"""local-testnet: starts everything on one machine."""
