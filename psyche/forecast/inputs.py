"""Inputs of `psyche simulate` beside the run and the profile: faults, and scenarios to play again."""

import shlex
import tomllib
from pathlib import Path
from typing import Any, Final

from psyche.durable import read_file
from psyche.errors import ConfigError
from psyche.forecast.backends import ForecastBackend
from psyche.sim.faults import Fault, read_faults
from psyche.sim.scenarios.checks import check_backend_of_fault, check_fault, check_within
from psyche.sim.scenarios.plan import read_scenario
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.scenarios.swarm import draw_scenario
from psyche.telemetry.text import describe_parse_failure

MAX_FILE_BYTES: Final = 1 << 20


def load_faults(path: Path, clients: int, backend: ForecastBackend) -> tuple[Fault, ...]:
    """The faults of a TOML file of `[[fault]]` tables, for a run on this backend."""
    text = _read(path)
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not TOML: {describe_parse_failure(error)}") from error
    tables = values.pop("fault", [])
    if values or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: {', '.join(values) or 'fault'}: a plan of faults contains only [[fault]] tables")
    try:
        found = read_faults(tables)
        for number, fault in enumerate(found):
            check_within(f"fault[{number}]", check_fault, fault, clients)
            place, endpoints = backend.traits.kind, backend.conditions.endpoints
            check_within(f"fault[{number}]", check_backend_of_fault, fault, place, endpoints)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _read(path: Path) -> str:
    try:
        return read_file(path, MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: {error}") from error


def find_scenario(text: str) -> Scenario:
    if text.isascii() and text.isdigit():
        return draw_scenario(int(text))
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"{text}: must be a seed (a number), or the TOML file of a scenario")
    return load_scenario(path)


def load_scenario(path: Path) -> Scenario:
    text = _read(path)
    try:
        found = read_scenario(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found.with_origin(f"python scripts/soak.py --plan {shlex.quote(str(path))}")
