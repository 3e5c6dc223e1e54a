"""The event log loses at most its last line, stays within its bounds and can be followed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.log import make

from psyche.telemetry import types
from psyche.telemetry.events import (
    MAX_LINE_BYTES,
    Entry,
    EventLog,
    EventTail,
    decode_line,
    encode_line,
    get_rotated,
    read_event,
    read_lines,
)
from psyche.telemetry.plain import get_plain

ONE, TWO = types.JournalNote(note="1"), types.JournalFailed(error="2")


def make_log(path: Path | None, **settings: int) -> EventLog:
    return EventLog(path, node="client-1", now=lambda: 12.5, **settings)


def test_an_event_is_one_json_line_with_time_node_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "events.jsonl"
    log = make_log(path)
    log.emit(types.Digest(height=3, digest=b"\x01\xff", agreed=True))
    lines = path.read_text().splitlines()
    assert lines == ['{"t":12.5,"node":"client-1","kind":"digest","height":3,"digest":"01ff","agreed":true}']


def test_without_a_path_only_subscribers_hear_and_a_slow_one_keeps_the_newest() -> None:
    log = make_log(None)
    heard, slow = log.subscribe(), log.subscribe(limit=3)
    for number in range(10):
        log.emit(types.Joined(epoch=number))
    entries = [Entry(12.5, "client-1", types.Joined(epoch=number)) for number in range(10)]
    assert (heard.drain(), heard.drain(), heard.dropped) == (entries, [], 0)
    assert (slow.drain(), slow.dropped) == (entries[-3:], 7)


def test_a_torn_last_line_is_skipped_and_the_next_process_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    make_log(path).emit(ONE)
    with path.open("ab") as file:
        file.write(b'{"t": 1, "node": "cli')
    assert [event["kind"] for event in read_lines(path)] == ["journal_note"]
    make_log(path).emit(TWO)
    assert [event["kind"] for event in read_lines(path)] == ["journal_note", "journal_failed"]


def test_a_sigkill_loses_at_most_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    program = (
        "import sys, pathlib\n"
        "from psyche.telemetry import types\n"
        "from psyche.telemetry.events import EventLog\n"
        f"log = EventLog(pathlib.Path({str(path)!r}), node='n')\n"
        "number = 0\n"
        "while True:\n"
        "    log.emit(types.Joined(epoch=number))\n"
        "    number += 1\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        reported = 0
        while reported < 500:
            reported = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
    numbers = [event["epoch"] for event in read_lines(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= reported


@pytest.mark.parametrize("keep", [0, 2])
def test_files_rotate_and_stay_within_the_bound(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = make_log(path, max_bytes=MAX_LINE_BYTES, keep=keep)
    for number in range(2_000):
        log.emit(types.EpochFailed(epoch=number, reason="y" * 200, steps_lost=0))
    files = sorted(tmp_path.iterdir())
    assert files == [get_rotated(path, number) for number in range(keep + 1)]
    assert all(file.stat().st_size <= MAX_LINE_BYTES for file in files)
    numbers = [event["epoch"] for event in read_lines(path)]
    assert numbers == list(range(numbers[0], 2_000))


def test_an_event_too_long_for_a_line_keeps_what_matters_most(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "e.jsonl", node="n")
    log.emit(make(types.Decided, members=tuple(range(100_000))))
    log.emit(types.Crashed(error="Traceback" + "x" * 10_000 + "ValueError: the cause"))
    cut, crashed = read_lines(tmp_path / "e.jsonl")
    assert cut["kind"] == "decided"
    assert cut["cut_bytes"] > MAX_LINE_BYTES
    assert isinstance(read_event(cut), types.Unknown)
    assert crashed["error"].startswith("Traceback")
    assert crashed["error"].endswith("ValueError: the cause"), "a traceback ends with the error"
    assert len(crashed["error"]) == 4_000


def test_a_number_that_no_float_holds_makes_an_event_unknown() -> None:
    line = {"t": 1.0, "node": "n", "kind": "wait_started", "what": "x", "until": 1, "then": "y", "wait": "payloads"}
    assert isinstance(read_event(line), types.WaitStarted)
    assert isinstance(read_event(line | {"until": 10**400}), types.Unknown)
    line = {"t": 1.0, "node": "n", "kind": "client_ended", "reason": "x", "code": 0, "cause": "stopped"}
    assert isinstance(read_event(line), types.ClientEnded)
    assert isinstance(read_event(line | {"code": 10**400}), types.Unknown)


def test_a_disk_that_refuses_writes_stops_no_node() -> None:
    log = EventLog(Path("/dev/full"), node="n")
    log.emit(ONE)
    assert log.lost == 1


def test_a_folder_is_read_merged_by_time(tmp_path: Path) -> None:
    for name, times in (("a", (1.0, 3.0)), ("b", (2.0, 4.0))):
        clock = iter(times)
        log = EventLog(tmp_path / name / "events.jsonl", node=name, now=lambda clock=clock: next(clock))
        log.emit(ONE)
        log.emit(TWO)
    assert [(event["t"], event["node"]) for event in read_lines(tmp_path)] == [
        (1.0, "a"),
        (2.0, "b"),
        (3.0, "a"),
        (4.0, "b"),
    ]


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"t": "x", "node": "n", "kind": "k"}', b"\xff\xfe", b"nul", b"[" * 100_000]
)
def test_lines_that_are_no_event_are_none(line: bytes) -> None:
    assert decode_line(line) is None


@given(st.dictionaries(st.text(max_size=5), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.sets(st.integers()),
    max_leaves=10,
)))  # fmt: skip
def test_whatever_plain_data_a_line_holds_can_be_read_back(fields: dict[str, object]) -> None:
    line = {"t": 1.0, "node": "n", "kind": "k", "fields": get_plain(fields)}
    assert decode_line(encode_line(line)) == line


def test_a_tail_follows_partial_lines_rotation_and_restarts(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    log = make_log(path, max_bytes=MAX_LINE_BYTES, keep=2)
    log.emit(ONE)
    assert [event["kind"] for event in tail.read()] == ["journal_note"]
    with path.open("ab") as file:
        file.write(b'{"t":1,"node":"n",')
        file.flush()
        assert tail.read() == []
        file.write(b'"kind":"two"}\n')
    assert [event["kind"] for event in tail.read()] == ["two"]
    seen: list[int] = []
    for number in range(2_000):
        log.emit(types.EpochFailed(epoch=number, reason="y" * 100, steps_lost=0))
        if number % 100 == 0:
            seen += [event["epoch"] for event in tail.read()]
    seen += [event["epoch"] for event in tail.read()]
    assert seen == list(range(2_000))
    path.unlink()
    get_rotated(path, 1).unlink()
    make_log(path).emit(TWO)
    assert [event["kind"] for event in tail.read()] == ["journal_failed"]
