"""local-testnet: starts a server and its clients on one machine."""
