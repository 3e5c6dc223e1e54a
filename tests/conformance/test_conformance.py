"""The traces replay to the same bytes, event by event, and are those that the generator writes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import generate
import pytest
from conformance_stage import record
from conformance_traces import FOUND, KINDS_BY_EVENT, MEETABLE, TRACES, read_trace, replay, unpack
from kits.tier import few

from psyche.core.encoding.account import encode_state
from psyche.core.state.errors import REFUSALS


def read_event(event: dict[str, Any]) -> dict[str, Any]:
    return event | ({"message": unpack(event["message"])} if "message" in event else {})


NAMES = sorted(path.stem for path in TRACES.glob("*.json"))
PATHS = sorted([*TRACES.glob("*.json"), *FOUND.glob("*.json")])


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_trace_replays_to_the_same_bytes(path: Path) -> None:
    trace = read_trace(path)
    assert encode_state(replay(trace)) == trace.end


@pytest.mark.parametrize("name", few(sorted(generate.SCENARIOS), 10))
def test_a_trace_is_what_the_generator_writes(name: str) -> None:
    # what zstd makes of the bytes may differ between its versions, the bytes may not
    kept, fresh = read_trace(TRACES / f"{name}.json"), record(name)
    assert (kept.what, kept.start, kept.end) == (fresh.what, fresh.start, fresh.end)
    assert [read_event(event) for event in kept.events] == [read_event(event) for event in fresh.events]


def test_the_traces_hold_every_kind_of_event_with_every_refusal_and_stay_small() -> None:
    assert sorted(generate.SCENARIOS) == NAMES
    events = [event for name in NAMES for event in read_trace(TRACES / f"{name}.json").events]
    assert len(NAMES) >= 50
    accepted = {event["event"] for event in events if "error" not in event}
    refused = {(event["event"], event["error"]) for event in events if "error" in event}
    assert accepted == set(KINDS_BY_EVENT), "a scenario must play each kind of message"
    assert refused == MEETABLE, "a scenario must play each refusal; what no bytes can ask for is UNWRITABLE"
    assert sum((TRACES / f"{name}.json").stat().st_size for name in NAMES) < 2_700_000


def test_every_refusal_but_that_of_an_impossible_election_can_be_met() -> None:
    assert {kind.__name__ for kind in REFUSALS.values()} - {error for _, error in MEETABLE} == {
        "InvalidCommitteeSelection"
    }


def test_the_generator_finds_what_it_imports_when_it_is_run_as_a_script() -> None:
    """Its own folder and the kits are on pytest's path, but not on that of a person who runs it."""
    code = f"import runpy; runpy.run_path({generate.__file__!r})"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
