"""Helpers of the commands: options, outputs, progress, checks, and serving a run.

No other package may import from here: the command line is the top floor.
"""
