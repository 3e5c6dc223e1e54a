"""The clients' and owners' side of the connection to a coordinator's home; the homes themselves are elsewhere."""
