"""Scenarios as TOML: hand-written plans, the shrinker's results, and the files of the corpus.

Only values that differ from the defaults are written. Tables: `[config]` (keys of the run), `[[class]]` with
`[class.machine]`, `[class.uplink]` and `[class.downlink]`, `[[fault]]` with its `kind`, `[[byzantine]]`, `[limits]`
of the clients' nodes, and `[chain]` for runs with `backend = "solana"`.
"""

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from psyche.errors import ConfigError
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.sim.byzantine.programs import ALL_KINDS, ByzantineMember
from psyche.sim.faults import Fault, read_faults
from psyche.sim.scenarios.checks import check_scenario
from psyche.sim.scenarios.scenario import ChainConditions, MachineClass, Scenario
from psyche.sim.trainer import MachineModel
from psyche.telemetry.text import describe_parse_failure

_LISTS: Final = {"class": "classes", "fault": "faults", "byzantine": "byzantine"}
_INNER: Final[dict[str, type]] = {"machine": MachineModel, "uplink": LinkConditions, "downlink": LinkConditions}


def read_scenario(text: str) -> Scenario:
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"scenario: {describe_parse_failure(error)}") from error
    scenario = _build(
        Scenario,
        {name: value for name, value in values.items() if name not in _LISTS}
        | {"limits": _build(NetworkLimits, values.get("limits", {}))}
        | {"chain": _build(ChainConditions, values.get("chain", {}))}
        | {"classes": tuple(_read_class(one) for one in _get_tables(values, "class", [{"count": 4}]))}
        | {"faults": read_faults(_get_tables(values, "fault", []))}
        | {"byzantine": tuple(_read_byzantine(one) for one in _get_tables(values, "byzantine", []))},
    )
    check_scenario(scenario)
    return scenario


def _get_tables(values: Mapping[str, Any], name: str, default: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = values.get(name, default)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{name}: must be [[{name}]] tables")
    return found


def _read_class(values: Mapping[str, Any]) -> MachineClass:
    inner = {name: _build(cls, values[name]) for name, cls in _INNER.items() if name in values}
    return _build(MachineClass, dict(values) | inner)


def _read_byzantine(values: Mapping[str, Any]) -> ByzantineMember:
    found = _build(ByzantineMember, values)
    if found.kind not in tuple(ALL_KINDS):
        raise ConfigError(f"byzantine: kind {found.kind!r} is unknown; known are {', '.join(ALL_KINDS)}")
    return found


def _build(cls: type[Any], values: Any) -> Any:
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{cls.__name__}: {values!r} is not a table; its keys are {', '.join(sorted(known))}")
    if unknown := sorted(set(values) - known):
        raise ConfigError(f"{cls.__name__}: {', '.join(unknown)} is unknown; known are {', '.join(sorted(known))}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error


def write_scenario(scenario: Scenario) -> str:
    lines = list(_write_plain(scenario, Scenario()))
    lines += ["", "[config]", *(f"{name} = {_write(value)}" for name, value in scenario.config.items())]
    if conditions := list(_write_plain(scenario.chain, ChainConditions())):
        lines += ["", "[chain]", *conditions]
    if limits := list(_write_plain(scenario.limits, NetworkLimits())):
        lines += ["", "[limits]", *limits]
    for one in scenario.classes:
        lines += ["", "[[class]]", *_write_plain(one, MachineClass(count=-1))]
        for name, cls in _INNER.items():
            inner = list(_write_plain(getattr(one, name), cls()))
            lines += ["", f"[class.{name}]", *inner] if inner else []
    for fault in scenario.faults:
        lines += ["", "[[fault]]", *(f"{name} = {_write(value)}" for name, value in _get_table(fault).items())]
    for liar in scenario.byzantine:
        lines += [
            "",
            "[[byzantine]]",
            *(f"{name} = {_write(value)}" for name, value in dataclasses.asdict(liar).items()),
        ]
    return "\n".join(lines) + "\n"


def _write_plain(value: Any, default: Any) -> Iterator[str]:
    for field in dataclasses.fields(value):
        here = getattr(value, field.name)
        is_plain = isinstance(here, bool | int | float | str)
        if field.init and is_plain and here != getattr(default, field.name):
            yield f"{field.name} = {_write(here)}"


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML has no surrogate pairs
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_write, value))}]"
    return str(value)


def _get_table(fault: Fault) -> dict[str, Any]:
    """The fault as a table: its kind, and the values that differ from the defaults."""
    plain = dataclasses.asdict(type(fault)())
    return {"kind": fault.kind} | {
        name: value for name, value in dataclasses.asdict(fault).items() if value != plain[name]
    }
