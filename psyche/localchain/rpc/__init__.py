"""What callers and subscribers see of a chain: JSON-RPC."""
