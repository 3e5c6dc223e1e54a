"""Command lines: each command parses, calls one function, prints."""
