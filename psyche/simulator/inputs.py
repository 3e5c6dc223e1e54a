"""What a person hands to `psyche simulate` beside the run and the profile: faults, and what is to be played again."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from psyche.errors import ConfigError
from psyche.simulator.faults import Fault, read_fault
from psyche.simulator.plan import read_scenario
from psyche.simulator.scenario import Scenario
from psyche.simulator.swarm import draw_scenario

MAX_FILE_BYTES: Final = 1 << 20
MACHINES: Final = re.compile(r"server|all|witnesses|trainers|random:\d+|client-(\d+)")


def load_faults(path: Path, clients: int) -> tuple[Fault, ...]:
    """The faults of a TOML file of `[[fault]]` tables.

    Raises:
        ConfigError: naming file, table and rule.
    """
    try:
        values: dict[str, Any] = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    tables = values.pop("fault", [])
    if values or not isinstance(tables, list):
        raise ConfigError(f"{path}: {', '.join(values) or 'fault'}: there is nothing but [[fault]] tables in a plan")
    found: list[Fault] = []
    for number, table in enumerate(tables):
        try:
            fault = read_fault(table)
            _check(fault, clients)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}: fault[{number}]: {error}") from error
        found.append(fault)
    return tuple(found)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8: {error}") from error


def _check(fault: Fault, clients: int) -> None:
    """Times are numbers, not negative; machines are such as there are."""
    for name in ("at_s", "for_s"):
        value = getattr(fault, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(f"{name} is {value!r}, must be a number of seconds, at least 0")
    named = getattr(fault, "who", ()) or [one for group in getattr(fault, "groups", ()) for one in group]
    for name in named:
        found = MACHINES.fullmatch(str(name))
        if found is None or (found[1] and int(found[1]) >= clients):
            right = f"server, client-0 to client-{clients - 1}, random:N, witnesses, trainers or all"
            raise ConfigError(f"{name!r} is no machine: {right}")


def find_scenario(text: str) -> Scenario:
    """The scenario that a seed draws, or that a TOML file describes.

    Raises:
        ConfigError: neither a number nor a file that can be read.
    """
    if text.isascii() and text.isdigit():
        return draw_scenario(int(text))
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"--replay {text}: must be a seed (a number), or a scenario's TOML file")
    try:
        return read_scenario(_read(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
