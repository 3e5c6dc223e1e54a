"""The command line: `app` assembles the commands, `main` is the entry point of `psyche`.

This package parses input and prints output; the work of each command is done by functions of other packages.
"""
