"""One module for each group of commands; a command parses its options, calls one function, and prints the result.

The options and help of a command are here; code that several commands share is in `cli.helpers`.
"""
