"""Checks that a hand-written plan or scenario can be played: each field by its type, then by its rules.

A fault that would have no effect is as much a mistake as an impossible one, and is refused too.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from psyche.backends.kinds import TRAITS
from psyche.core.state.config_checks import check_config
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.limits import MAX_INNER_STEPS, U64_MAX
from psyche.core.state.state import Config
from psyche.errors import ConfigError
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import (
    ANSWERED,
    CHAIN_KINDS,
    ChainHalt,
    ClockJump,
    DataTrouble,
    Degrade,
    DiskFull,
    EndpointFault,
    Fault,
    Hang,
    Kill,
    LostAnswer,
    Partition,
    SlowDisk,
    TornWrite,
    TrainerHang,
)
from psyche.sim.payloads import WEIGHTS
from psyche.sim.scenarios.scenario import (
    CHAIN,
    ChainConditions,
    MachineClass,
    Scenario,
    build_run_config,
    build_run_model,
)
from psyche.sim.trainer import MOST_PARTS

MACHINES: Final = re.compile(r"server|all|witnesses|trainers|random:[1-9]\d*|client-(0|[1-9]\d*)")
SERVERS_TOO: Final = (Kill, Hang, Partition, Degrade, ClockJump, DiskFull, SlowDisk)  # may hit the server
LASTING: Final = (
    Hang,
    Partition,
    Degrade,
    DiskFull,
    SlowDisk,
    DataTrouble,
    TrainerHang,
    LostAnswer,
    EndpointFault,
    ChainHalt,
)  # no effect with `for_s` 0
MOST: Final = 1e12  # upper limit of every number: more is a typing error
MOST_CLIENTS: Final = 1_000  # each is a whole client in this one process
WORSE: Final = ("latency_s", "jitter_s", "bandwidth_bytes_s", "loss", "duplicate")  # what may degrade a line
SIGNED: Final = ("offset_s", "clock_s")
SHARES: Final = ("loss", "duplicate", "spread", "share", "skipped", "lost", "late", "cut", "throttled")
WITH_SERVER: Final = (TornWrite, LostAnswer)  # faults that need a server
_WHICH: Final = {"who", "endpoint", *(field.name for field in fields(Fault))}
TROUBLES: Final = tuple(field.name for field in fields(EndpointFault) if field.name not in _WHICH)
MOST_ENDPOINTS: Final = 16
NAMES: Final = tuple[str, ...]
GROUPS: Final = tuple[tuple[str, ...], ...]


def check_fields(value: Any) -> None:
    """Check the plain fields of a dataclass: declared types, possible numbers."""
    for field in fields(value):
        _check_field(field.name, field.type, getattr(value, field.name))


def _check_field(name: str, kind: object, value: Any) -> None:
    if kind is float:
        _check_number(name, value)
    elif kind is int:
        low = -1 if name == "at_height" else 0
        _require(_is_whole(value) and low <= value <= U64_MAX, name, value, f"a whole number, at least {low}")
    elif kind is bool:
        _require(isinstance(value, bool), name, value, "true or false")
    elif kind is str:
        _require(isinstance(value, str), name, value, "a string")
    elif kind == NAMES:
        _require(_is_names(value), name, value, 'a list of machines, as in ["client-0"]')
    elif kind == GROUPS:
        right = isinstance(value, tuple) and len(value) > 1 and all(map(_is_names, value))
        _require(right, name, value, 'two lists of machines or more, as in [["client-0"], ["server"]]')


def _check_number(name: str, value: Any) -> None:
    """Uses comparisons only: a whole number in a file may be larger than any float."""
    low, high = (-MOST if name in SIGNED else 0.0), (1.0 if name in SHARES else MOST)
    unit = "a number of seconds" if name.endswith("_s") and "_bytes_" not in name else "a number"
    right = "a share from 0 to 1" if name in SHARES else f"{unit}, at least {low:g} and at most {high:g}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_endless = name == "bandwidth_bytes_s" and value == math.inf
    _require(is_number and (is_endless or low <= value <= high), name, value, right)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(one, str) for one in value)


def _require(holds: object, name: str, value: object, right: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {_write(value)}, must be {right}")


def _write(value: object) -> str:
    """Format a value as the file has it: tuples are lists there."""
    return f"[{', '.join(map(_write, value))}]" if isinstance(value, tuple) else repr(value)


def check_fault(fault: Fault, clients: int) -> None:
    check_fields(fault)
    groups: tuple[tuple[str, ...], ...] = getattr(fault, "groups", ())
    sets = [frozenset(group) for group in groups]
    _require(len(set(sets)) == len(sets), "groups", groups, "groups that differ")
    for field, names in (("who", getattr(fault, "who", ())), ("groups", [one for group in groups for one in group])):
        _check_machines(field, names, clients)
        if "server" in names and not isinstance(fault, SERVERS_TOO):
            raise ConfigError(f"{field}: a {fault.kind} can hit clients only, not the server")
    if isinstance(fault, LostAnswer):
        _require(fault.what in ANSWERED, "what", fault.what, f"one of {', '.join(ANSWERED)}")
    if isinstance(fault, LASTING):
        _require(fault.for_s > 0, "for_s", fault.for_s, f"above 0: a {fault.kind} of 0 s has no effect")
    if isinstance(fault, Degrade):
        _check_degrade(fault)
    if isinstance(fault, ClockJump):
        _require(fault.offset_s, "offset_s", fault.offset_s, "a number other than 0, or the clock does not jump")


def _check_degrade(fault: Degrade) -> None:
    if not any(getattr(fault, name) for name in WORSE):
        raise ConfigError(f"{', '.join(WORSE)}: at least one must be above 0, or the fault has no effect")
    if not fault.up and not fault.down:
        raise ConfigError("up, down: at least one must be true, or the fault has no effect")


def _check_machines(field: str, names: Iterable[str], clients: int) -> None:
    for name in names:
        found = MACHINES.fullmatch(name)
        if found is None or (found[1] and int(found[1]) >= clients):
            known = "client-0" if clients == 1 else f"client-0 to client-{clients - 1}"
            raise ConfigError(
                f"{field}: {name!r} is not a machine; write server, {known}, random:N, witnesses, trainers or all"
            )
        if name.startswith("random:") and int(name.removeprefix("random:")) > clients:
            raise ConfigError(f"{field}: {name!r} asks for too many: there are only {clients} clients")


def check_scenario(scenario: Scenario) -> None:
    check_fields(scenario)
    parts = scenario.weight_parts
    right = f"a divisor of {WEIGHTS}, 1 to {MOST_PARTS}"
    _require(0 < parts <= MOST_PARTS and WEIGHTS % parts == 0, "weight_parts", parts, right)
    right = f"at most {MAX_INNER_STEPS}"
    _require(scenario.inner_steps <= MAX_INNER_STEPS, "inner_steps", scenario.inner_steps, right)
    check_within("limits", _check_limits, scenario.limits)
    for number, one in enumerate(scenario.classes):
        check_within(f"class[{number}]", _check_class, one)
    right = f"1 to {MOST_CLIENTS} clients"
    _require(1 <= scenario.clients <= MOST_CLIENTS, "the sum of count over all [[class]]", scenario.clients, right)
    _require(scenario.backend in TRAITS, "backend", scenario.backend, f"one of {', '.join(TRAITS)}")
    check_within("chain", _check_chain, scenario.chain)
    for number, fault in enumerate(scenario.faults):
        check_within(f"fault[{number}]", check_fault, fault, scenario.clients)
        check_within(f"fault[{number}]", check_backend_of_fault, fault, scenario.backend, scenario.chain.endpoints)
    for number, liar in enumerate(scenario.byzantine):
        check_within(f"byzantine[{number}]", _check_byzantine, liar, scenario.clients)
    check_within("config", _check_config, scenario)


def _check_chain(chain: ChainConditions) -> None:
    check_fields(chain)
    _require(chain.slot_s > 0, "slot_s", chain.slot_s, "above 0")
    _require(1 <= chain.endpoints <= MOST_ENDPOINTS, "endpoints", chain.endpoints, f"1 to {MOST_ENDPOINTS}")
    most_s = chain.lag_most_s
    _require(chain.lag_least_s <= most_s, "lag_least_s", chain.lag_least_s, f"at most lag_most_s, which is {most_s}")
    for name in ("skipped", "lost"):
        share: float = getattr(chain, name)
        _require(share < 1, name, share, "below 1, or nothing ever lands")


def check_backend_of_fault(fault: Fault, backend: str, endpoints: int) -> None:
    """Check that a fault can happen in the backend of the run, where each client knows so many endpoints."""
    if backend == CHAIN:
        named = [*getattr(fault, "who", ()), *(one for group in getattr(fault, "groups", ()) for one in group)]
        if isinstance(fault, WITH_SERVER) or "server" in named:
            raise ConfigError(f"{fault.kind}: a run on a chain has no server")
    elif fault.kind in CHAIN_KINDS:
        raise ConfigError(f"{fault.kind}: needs a run on a chain, this one is on a server")
    if isinstance(fault, EndpointFault):
        _require(fault.endpoint <= endpoints, "endpoint", fault.endpoint, f"1 to {endpoints}, or 0 for all")
        if not any(getattr(fault, name) for name in TROUBLES):
            raise ConfigError(f"{', '.join(TROUBLES)}: at least one must be set, or the fault has no effect")


def _check_limits(limits: NetworkLimits) -> None:
    check_fields(limits)
    for field in fields(limits):
        value = getattr(limits, field.name)
        _require(value > 0, field.name, value, "above 0")


def check_within(where: str, check: Any, *args: object) -> None:
    try:
        check(*args)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_class(one: MachineClass) -> None:
    check_fields(one)
    for name in ("machine", "uplink", "downlink"):
        check_within(name, check_fields, getattr(one, name))
    for name in ("uplink", "downlink"):
        line: LinkConditions = getattr(one, name)
        _require(line.bandwidth_bytes_s > 0, f"{name}: bandwidth_bytes_s", line.bandwidth_bytes_s, "above 0")


def _check_byzantine(liar: ByzantineMember, clients: int) -> None:
    check_fields(liar)
    _require(liar.who < clients, "who", liar.who, f"the number of a client, 0 to {clients - 1}")


def _check_config(scenario: Scenario) -> None:
    given: Any = scenario.config
    _require(isinstance(given, Mapping), "[config]", given, "a table")
    kinds = {field.name: field.type for field in fields(Config)}
    for name, value in given.items():
        if name not in kinds:
            raise ConfigError(f"{name}: unknown key; known are {', '.join(sorted(kinds))}")
        _check_field(name, kinds[name], value)
    config = build_run_config(scenario)
    try:
        check_config(config, build_run_model(scenario))
    except ConfigRefused as error:
        raise ConfigError(str(error)) from error
    if scenario.must_advance and config.init_min_clients > scenario.clients:
        raise ConfigError(
            f"init_min_clients is {config.init_min_clients}, but the scenario has only {scenario.clients} clients, "
            "so no epoch could ever form; lower it, or add clients"
        )
