"""Data providers, tokenizing, the TCP data server and its client."""
