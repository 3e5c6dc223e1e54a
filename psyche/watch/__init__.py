"""Watches runs from outside: reads sources, folds each into a `RunView`, draws it, and raises alerts.

This package is a process of its own (`psyche watch`): nothing in a client or server waits for it. What is known of a
run is `psyche.analysis.run_view`; here is where it comes from, and how it is shown.
"""
