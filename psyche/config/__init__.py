"""run.toml, state.toml and data.toml: load them into core types, with errors that people can act on.

The types, their defaults and their rules belong to `psyche.core.state`; options of commands belong to `psyche.cli`.
"""
