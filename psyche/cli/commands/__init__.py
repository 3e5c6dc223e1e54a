"""A file for each group of commands; each command parses, calls one function, prints.

Here belong the options and the help of a command. What several of them need stands in `cli.helpers`.
"""
