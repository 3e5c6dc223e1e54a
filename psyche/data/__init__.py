"""Data providers, the tokenizer command, the TCP data server and its client."""
