"""Events in the logs of transactions: the coordinator's own, and nobody else's."""

import json
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.chain.anchor import encode_event, get_discriminator, log_event
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR, TREASURER
from psyche.backends.solana.interface.events import (
    EVENTS,
    ChainEvent,
    CollectedEvent,
    EjectedEvent,
    JoinedEvent,
    LeftRunEvent,
    StateChangedEvent,
    WithdrewEvent,
    get_event_name,
    read_events,
)
from psyche.core.state.state import RunState

IDL: Final = json.loads((Path(__file__).parents[3] / "programs" / "built" / "psyche_coordinator.json").read_text())
A, B, FOREIGN = (Pubkey(bytes([number] * 32)) for number in (1, 2, 3))
COLLECTED: Final = CollectedEvent(A, B, 5, 12)
SAMPLES: Final[list[ChainEvent]] = [
    COLLECTED, EjectedEvent(A, B, 70_000, 2, 255), JoinedEvent(A, B, FOREIGN), LeftRunEvent(A, B),
    StateChangedEvent(A, 2**63, 3, 4, 5, int(RunState.WARMUP)), WithdrewEvent(A, B),
]  # fmt: skip
DATA: Final = encode_event(COLLECTED)


def begin(program: Pubkey, depth: int) -> str:
    return f"Program {program} invoke [{depth}]"


def end(program: Pubkey, how: str = "success") -> str:
    return f"Program {program} {how}"


@pytest.mark.parametrize("event", SAMPLES, ids=get_event_name)
def test_each_event_of_the_idl_is_read_with_its_fields(event: ChainEvent) -> None:
    assert read_events(log_event(event)) == (event,)
    fields = next(one for one in IDL["types"] if one["name"] == get_event_name(event))["type"]["fields"]
    assert [(one["name"], one["type"] == "pubkey") for one in fields] == [
        (name, hint is Pubkey) for name, hint in get_type_hints(type(event)).items()
    ]


def test_every_event_of_the_idl_has_a_class_and_the_usual_discriminator() -> None:
    assert EVENTS.keys() == {one["name"] for one in IDL["events"]} == {get_event_name(one) for one in SAMPLES}
    for one in IDL["events"]:
        assert bytes(one["discriminator"]) == get_discriminator("event", one["name"])


def test_a_called_coordinators_event_counts_and_its_callers_does_not() -> None:
    called = [begin(TREASURER, 1), begin(COORDINATOR, 2), DATA, end(COORDINATOR)]
    assert read_events([*called, end(TREASURER)]) == (COLLECTED,)
    assert read_events([*called, DATA, end(TREASURER)]) == (COLLECTED,)  # once: the second one is forged


@pytest.mark.parametrize(
    "logs",
    [
        [DATA],
        [begin(FOREIGN, 1), DATA, end(FOREIGN)],
        [begin(FOREIGN, 1), f"Program log: {begin(COORDINATOR, 2)}", DATA, end(FOREIGN)],
        [begin(FOREIGN, 1), f"Program log: x\n{begin(COORDINATOR, 2)}", DATA, end(FOREIGN)],
        [begin(COORDINATOR, 1), begin(FOREIGN, 2), DATA, end(FOREIGN), end(COORDINATOR)],
        [begin(COORDINATOR, 1), end(COORDINATOR), begin(FOREIGN, 1), DATA, end(FOREIGN)],
        [begin(COORDINATOR, 1), f"Program log: {DATA}", end(COORDINATOR)],
        [begin(COORDINATOR, 2), DATA, end(COORDINATOR)],
        [begin(FOREIGN, 1), end(COORDINATOR), DATA],
        [*log_event(COLLECTED), begin(FOREIGN, 1), end(FOREIGN, "failed: custom program error: 0x1")],
    ],
    ids=["nobody", "another program", "logged", "in a line", "called", "later", "text", "depth", "end", "failed"],
)  # fmt: skip
def test_what_the_coordinator_did_not_say_is_no_event(logs: list[str]) -> None:
    assert read_events(logs) == ()


@pytest.mark.parametrize(
    "data",
    [
        "Program data: %",
        "Program data: AAAA",
        DATA[:-4],
        f"{DATA} {DATA[14:]}",
        f"{DATA}\n",
        "Program data: " + "A" * 9_999,
    ],
)
def test_data_that_are_no_event_are_passed_over(data: str) -> None:
    logs = [begin(COORDINATOR, 1), data, encode_event(LeftRunEvent(A, B)), end(COORDINATOR)]
    assert read_events(logs) == (LeftRunEvent(A, B),)


def test_a_log_that_is_cut_off_keeps_the_events_before_the_cut() -> None:
    assert read_events([begin(COORDINATOR, 1), DATA, "Log truncated"]) == (COLLECTED,)


lines: Any = st.one_of(
    st.text(max_size=60),
    st.sampled_from([DATA, DATA[:-3], *(one(key) for key in (A, COORDINATOR) for one in (end, lambda k: begin(k, 1)))]),
)


@given(st.lists(lines, max_size=8))
def test_whatever_a_log_says_is_read(logs: list[str]) -> None:
    assert set(read_events(logs)) <= {COLLECTED}


def test_events_are_told_in_words_that_name_who_and_how_much() -> None:
    assert str(COLLECTED) == f"5 points of {B} were collected, 12 so far"
    assert str(SAMPLES[4]) == "the run is in warmup, epoch 5, height 4, step 3"
    assert "state 99" in str(StateChangedEvent(A, 1, 1, 1, 1, 99))
    assert all(str(B) in str(one) or isinstance(one, StateChangedEvent) for one in SAMPLES)
