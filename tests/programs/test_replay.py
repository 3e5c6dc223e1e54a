"""The compiled rules do what core does: every recorded trace, and any bytes that an owner may send."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from conformance_traces import FOUND, TRACES, Trace, read_event, read_trace
from differential.backends import ACCEPTED, PANICKED, REFUSED, ProgramBackend, encode_event, encode_head
from differential.odd_states import get_moments
from differential.pair import Event, apply_to_core
from differential.updates import UPDATE, Case, build_accounts, draw_case, judge_by_backend, judge_by_core
from kits.svm import BUILT
from kits.tier import IS_WHOLE, few

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.encoding.bodies import decode_body, encode_body
from psyche.core.rules.apply import KINDS
from psyche.core.state.errors import REFUSALS
from psyche.core.state.limits import MAX_TIME_S
from psyche.core.state.messages import Update
from psyche.core.state.settings import MOST, get_keys
from psyche.core.state.state import ZERO32, Config, Model
from psyche.errors import WireError
from psyche.testing.builders import START_UNIX, build_config, build_model

PATHS = sorted([*TRACES.glob("*.json"), *FOUND.glob("*.json")])
TYPES = {kind.number: kind.type for kind in KINDS}
NUMBERS = {kind.__name__: number for number, kind in REFUSALS.items()}
# Of the bodies of each kind, optional values present or not.
SIZES = {
    1: (1, 33), 2: (40,), 4: (4,), 5: (36,), 6: (497, 500), 7: (8,), 8: (170,), 9: (8,), 12: (16,), 14: (2, 10, 18),
    15: (37, 45, 70, 78),
}  # fmt: skip
UPDATES = 6_000 if IS_WHOLE else 1_000
BODIES = 3_000


@pytest.fixture(scope="module")
def backend() -> ProgramBackend:
    return ProgramBackend()


def test_the_rules_in_rust_have_the_refusals_of_core() -> None:
    """Not all occur: an election never fails."""
    text = (BUILT.parent / "rules" / "src" / "errors.rs").read_text()
    assert {name: int(number) for name, number in re.findall(r"^    (\w+) = (\d+),$", text, re.MULTILINE)} == NUMBERS


def replay(backend: ProgramBackend, trace: Trace) -> None:
    """Play the events; hashes tell the bytes, and with them the nonce."""
    backend.load(trace.start)
    for number, event in enumerate(trace.events):
        where = f"{trace.name}, event {number}: {event['event']}"
        expected = REFUSED + NUMBERS[event["error"]] if "error" in event else ACCEPTED
        assert backend.send(encode_event(*Event(*read_event(event)))) == expected, where
        assert hashlib.sha256(backend.read()).hexdigest() == event["sha256"], where


def draw_body(draw: Random, numbers: list[int]) -> tuple[int, bytes]:
    """A body, mostly of the right length; tags and lengths are small."""
    number = draw.choice((*numbers, *numbers, *numbers, 0, 18, 255))
    size = draw.choice(SIZES.get(number, (0,))) + draw.choice((0, 0, 0, 0, 0, 1, -1, 70))
    size = max(0, size)
    body = bytearray(draw.randbytes(size) if draw.random() < 0.5 else bytes(size))
    for place in (0, 1, 2, 3, 36, 37, 8, 493, 494):
        if place < size and draw.random() < 0.6:
            body[place] = draw.choice((0, 0, 1, 2, 3, 7))
    return number, bytes(body)


@pytest.mark.parametrize("path", few(PATHS[::2] + PATHS[1::2], 36), ids=lambda path: path.stem)
def test_a_trace_replays_on_the_compiled_rules(backend: ProgramBackend, path: Path) -> None:
    trace = read_trace(path)
    replay(backend, trace)
    assert backend.read() == trace.end


def test_any_bytes_as_an_update_are_accepted_by_both_or_by_neither(backend: ProgramBackend) -> None:
    draw, accounts, accepted = Random(1), build_accounts(), 0
    for _ in range(UPDATES):
        case = draw_case(draw, accounts)
        judged = judge_by_core(case)
        assert judge_by_backend(backend, case) == judged, (
            f"to account {accounts.index(case.account)}: {case.body.hex()}"
        )
        accepted += judged[0]
    assert UPDATES // 10 < accepted < UPDATES * 9 // 10, "some of both"


def list_bounds() -> Iterator[tuple[type, str, int]]:
    """The least and the largest number of each key, and those beyond them that the bytes can hold."""
    for record in (Config, Model):
        for name, key in get_keys(record).items():
            ends = (key.least - 1, key.least, key.limit, key.limit + 1) if key.width in MOST else ()
            yield from ((record, name, end) for end in ends if 0 <= end <= MOST[key.width])


def test_the_rules_in_rust_have_the_ranges_of_the_keys(backend: ProgramBackend) -> None:
    """Each key at its bounds, while others leave it room: whatever key is declared, its range is compared."""
    account, accepted, refused = build_accounts()[0], set[str](), set[str]()
    room = build_config(
        epoch_time=0, rounds_per_epoch=1, min_clients=1, init_min_clients=256, global_batch_size_start=1,
        global_batch_size_end=65_535,
    )  # fmt: skip
    for record, name, value in list_bounds():
        longer = {"epoch_time": MAX_TIME_S} if name == "rounds_per_epoch" else {}
        settings = {Config: replace(room, **longer), Model: build_model()}
        settings[record] = replace(settings[record], **{name: value})  # pyright: ignore[reportArgumentType]
        case = Case(account, UPDATE, encode_body(Update(settings[Config], settings[Model])))
        core = judge_by_core(case)
        assert judge_by_backend(backend, case) == core, f"{name} = {value}"
        (accepted if core[0] else refused).add(name)
    assert accepted >= {name for _, name, _ in list_bounds()}
    assert refused >= {"warmup_time", "verification_percent", "late_limit", "max_seq_len", "cooldown_sources"}


def test_any_bytes_as_a_body_do_the_same_to_both_or_nothing_to_either(backend: ProgramBackend) -> None:
    draw, accounts, read = Random(2), [raw for raw, _ in get_moments()], 0
    numbers = [kind.number for kind in KINDS if kind.name not in ("update", "update_client_version")]
    for _ in range(BODIES):
        number, body = draw_body(draw, numbers)
        account = draw.choice(accounts)
        backend.load(account)
        said = backend.send(encode_head(START_UNIX, 0, ZERO32, number) + body)
        try:
            event = Event(START_UNIX, 0, ZERO32, decode_body(TYPES[number], body))
        except (KeyError, WireError):
            assert said not in (ACCEPTED, PANICKED), (number, body.hex())
            assert backend.read() == account
            continue
        state = decode_state(account)
        assert said == apply_to_core(state, event)[0], (number, body.hex())
        assert backend.read() == encode_state(state)
        read += 1
    assert read > BODIES // 10
