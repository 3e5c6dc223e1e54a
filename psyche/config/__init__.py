"""run.toml, state.toml and data.toml: load them into core types, with errors that people can act on."""
