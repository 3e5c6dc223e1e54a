"""A run.toml for a run on a chain: what cannot run there is refused, and what is rarely meant is told."""

from dataclasses import replace
from pathlib import Path

from psyche.cli.helpers.owners import say
from psyche.config.load import LoadedRun, load_run
from psyche.config.rules import (
    delay_entropy,
    find_address_warnings,
    find_chain_problems,
    find_chain_warnings,
    find_unsupported,
)
from psyche.errors import ConfigError


def load_chain_run(path: Path) -> LoadedRun:
    """Load the settings of a run on a chain, and print warnings; its entropy is delayed."""
    file = load_run(path)
    if problems := [*find_unsupported(file.model, file.config), *find_chain_problems(file.model)]:
        raise ConfigError("\n".join(f"{file.path}: {problem}" for problem in problems))
    file = replace(file, config=delay_entropy(file.config))
    warnings = find_chain_warnings(file.config, file.warnings)
    for warning in (*warnings, *find_address_warnings(file.config, file.bootstrap)):
        say(f"warning: {warning}")
    return file
