"""States to begin from: those of the recorded runs, and mutants of them that still decode."""

import copy
import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any

from conformance_traces import TRACES, read_event, read_trace

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.state import Coordinator, RunState
from psyche.errors import WireError

EDGES = (0, 1, 2, 3, 4, 31, 32, 255, 256, 65_534, 65_535, (1 << 32) - 2, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)


@cache
def get_moments() -> tuple[tuple[bytes, int], ...]:
    """States (with their time) from all recorded runs: the ends, and where the run state had just changed."""
    moments: list[tuple[bytes, int]] = []
    for path in sorted(TRACES.glob("*.json")):
        trace = read_trace(path)
        state, now, was = decode_state(trace.start), 0, None
        for number, event in enumerate(trace.events):
            now = event.get("now", now)
            try:
                apply(state, *read_event(event))
            except CoordinatorError:
                continue
            if state.run_state is not was or number % 7 == 0:
                moments.append((encode_state(state), now))
            was = state.run_state
    assert {decode_state(raw).run_state for raw, _ in moments} >= set(RunState) - {RunState.UNINITIALIZED}
    return tuple(moments)


def iter_places(node: Any) -> Iterator[tuple[Any, str]]:
    """Every field of the tree that holds a plain value."""
    for field in fields(node):
        value = getattr(node, field.name)
        inner = value if isinstance(value, list) else [value]
        if any(is_dataclass(item) for item in inner):
            for item in inner:
                yield from iter_places(item)
        elif value is not None:
            yield node, field.name


def draw_value(draw: random.Random, value: Any) -> Any:
    """Another value of the same kind: a neighbour, an edge, or any."""
    match value:
        case bool():
            return not value
        case IntFlag():
            return type(value)(sum(flag for flag in type(value) if draw.random() < 0.5))
        case IntEnum():
            return draw.choice(list(type(value)))
        case int():
            near = (value - 1, value + 1, value ^ (1 << draw.randrange(64)), draw.getrandbits(256))
            return max(0, draw.choice((*near, *EDGES)))
    others = {
        float: (0.0, -1.0, 1e308, 1e-300),
        str: ("", "x" * 64, "/ip4/127.0.0.1/tcp/1"),
        bytes: (bytes(len(value)), draw.randbytes(len(value))) if isinstance(value, bytes) else (),
    }
    return draw.choice(others.get(type(value), (value,)))


def change_list(draw: random.Random, state: Coordinator) -> None:
    """Drop, repeat or swap entries of a list."""
    rounds: list[list[Any]] = [round_.witnesses for round_ in state.rounds]
    rounds += [state.clients, state.registry.slots, state.epoch.start_candidates, state.rounds]
    entries: list[Any] = draw.choice(rounds)
    if not entries:
        return
    here, there = draw.randrange(len(entries)), draw.randrange(len(entries))
    if draw.random() < 0.4 and entries is not state.rounds:
        del entries[here]
    else:
        entries[here] = copy.deepcopy(entries[there])


def draw_mutant(draw: random.Random, raw: bytes) -> bytes | None:
    """Bytes that differ in one or two places and still decode; None where they do not."""
    state = decode_state(raw)
    places = list(iter_places(state))
    # most places lie in models and slots: half of the changes hit what moves during a run
    hot = [p for p in places if p[0] in (state, state.epoch, state.progress, state.current, *state.clients)]
    for _ in range(draw.choice((1, 1, 2))):
        if draw.random() < 0.2:
            change_list(draw, state)
        else:
            node, name = draw.choice(hot if draw.random() < 0.6 else places)
            setattr(node, name, draw_value(draw, getattr(node, name)))
    try:
        changed = encode_state(state)
        if draw.random() < 0.1:
            at = draw.randrange(len(changed))
            changed = changed[:at] + bytes([draw.randrange(256)]) + changed[at + 1 :]
        decode_state(changed)
    except WireError:
        return None
    return changed
