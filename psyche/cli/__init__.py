"""Command lines: `app` puts them together, `main` is where `psyche` starts.

Here belongs what a person types and what is printed in answer. What a command does is a function of another package.
"""
