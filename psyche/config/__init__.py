"""run.toml, state.toml and data.toml, turned into core types with errors a person can act on."""
