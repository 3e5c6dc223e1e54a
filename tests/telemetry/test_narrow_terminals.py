"""On a terminal of 80 columns no line is longer, and what is waited for is never what is cut."""

import io
from pathlib import Path
from typing import Any

import pytest
from kits.log import make

from psyche.analysis.run_view import RunView
from psyche.analysis.summary import COLUMN_NAMES
from psyche.cli.helpers.progress import format_progress
from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import Entry, EventLog
from psyche.telemetry.status import StatusLine, format_waiting
from psyche.telemetry.text import TEXT_COLUMNS, format_table, format_tables, lay_out
from psyche.testnet.report import ClientReport, RunReport, format_report
from psyche.testnet.settings import get_node_name
from psyche.watch.app import ConsoleView
from psyche.watch.page import format_line
from psyche.watch.sources import LogSource
from psyche.wire.backend import RunStatus

NOW = 1_000_000.0


def assert_narrow(text: str, *whole: str) -> None:
    """No line is too long, and these stand there in full, if need be on several lines."""
    assert max(map(len, text.splitlines())) <= TEXT_COLUMNS, text
    flowing = " ".join(text.split())
    for one in whole:
        assert one in flowing, text


def make_wait(until: float | None = NOW + 4_000.0) -> types.WaitStarted:
    return types.WaitStarted(
        what="client 3, client 14, client 15, client 92, client 65 and 35 more to finish round 12345", until=until,
        then="report the results that have arrived, without those that are late", wait=types.Wait.OTHERS_FINISHED,
    )  # fmt: skip


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> tuple[Console, list[str]]:
    """A terminal of 80 columns, and the status blocks that it was asked to show."""
    shown: list[str] = []
    monkeypatch.setenv("COLUMNS", "80")
    console = Console(io.StringIO(), live=True)
    monkeypatch.setattr(console, "set_status", shown.append)
    return console, shown


def fill(log: EventLog) -> None:
    log.emit(make(types.ClientStarted, run_id="r"))
    log.emit(types.StateChanged(run_state=RunState.ROUND_TRAIN, epoch=1234, height=12345, step=1_234_567, members=256))
    log.emit(make(types.Trained, loss=12.345, tokens=123_456_789, seconds=1.0))
    log.emit(make(types.Network, bytes_sent=123_400_000_000, bytes_received=123_400_000_000))
    log.emit(make_wait())
    log.emit(make(types.BackendLost))


def test_a_client_s_line_keeps_the_wait_whole(narrow: tuple[Console, list[str]]) -> None:
    console, shown = narrow
    log = EventLog(None, node="client")
    line = StatusLine(log.subscribe(), "client", console, now=lambda: NOW)
    fill(log)
    line.refresh()
    assert_narrow(
        shown[-1], "epoch 1234 round 12345 step 1234567 | training", format_waiting(make_wait(), NOW),
        "cannot reach the run's record, tries again",
    )  # fmt: skip


def test_the_server_s_line_keeps_whom_it_waits_for(narrow: tuple[Console, list[str]]) -> None:
    console, shown = narrow
    fields: dict[str, Any] = {
        "run_id": "r", "run_uid": bytes(32), "program": "", "now_unix": 100, "nonce": 1,
        "run_state": int(RunState.ROUND_TRAIN), "state_start_unix": 0, "pending_pause": True, "epoch": 1234,
        "height": 12345, "step": 1_234_567, "total_steps": 9_999_999, "healthy": 12, "members": 200, "waiting": 100,
        "min_clients": 100, "init_min_clients": 200, "connections": 4, "loss": 12.345, "tokens_per_s": 123_456_789.0,
        "reporting": 200, "failing": 17,
    }  # fmt: skip
    view = RunView()
    view.take_status(RunStatus(**fields))
    view.take(Entry(100.0, "server", types.ErrorReported(key=b"k" * 32, name="n" * 48, phase="", error="e" * 300)))
    members = "12 of 200 members healthy, 100 clients wait for the next epoch"
    assert_narrow(format_line(view, 100.0, TEXT_COLUMNS), members, "pauses at the end of this epoch")
    ConsoleView([view], console, now=lambda: 100.0).refresh()
    assert_narrow(shown[-1], members, "17 clients report errors", "pauses at the end of this epoch", "n" * 48)


@pytest.mark.parametrize("phase", [RunState.WAITING_FOR_MEMBERS, RunState.ROUND_TRAIN])
def test_the_table_of_a_testnet_fits_and_keeps_the_waits_whole(
    phase: RunState, narrow: tuple[Console, list[str]], tmp_path: Path
) -> None:
    console, shown = narrow
    for number in range(1, 4):
        name = get_node_name(number)
        log = EventLog(tmp_path / name / "events.jsonl", node=name, now=lambda: NOW)
        fill(log)
        log.emit(types.StateChanged(run_state=phase, epoch=1234, height=12345, step=1_234_567, members=256))
        log.emit(make(types.BackendConnected))
        log.close()
    source = LogSource(tmp_path)
    while source.read():
        pass
    ConsoleView([source.view], console, now=lambda: NOW).refresh()
    waits = f"client-1, client-2, client-3 {format_waiting(make_wait(), NOW).replace('waiting', 'wait')}"
    assert_narrow(shown[-1], waits, "loss")


def test_the_report_of_a_testnet_fits() -> None:
    clients = [
        ClientReport(
            get_node_name(number),
            rounds_applied=123_456,
            loss=12.345,
            digest="ab" * 32,
            weights_sha256="cd" * 32,
            bytes_sent=123_400_000_000,
            bytes_received=123_400_000_000,
            allreduce_bytes=10**15,
            kills=123,
            heals=123,
        )
        for number in (1, 64)
    ]
    text = format_report(RunReport("demo", 123_456.0, clients, 246, held_out_loss=1.234))
    table = text.partition("\n\n")[0]
    assert_narrow(table, *["client", "rounds", "loss", "digest", "weights", "sent", "received", "kills", "heals"])
    assert "a bf16 all-reduce would have sent 1000.0 TB a client" in text


def test_tables_of_figures_are_cut_into_several_that_fit() -> None:
    head = ("node", *COLUMN_NAMES, "cut off", "tokens", "sent", "received")
    shares = ["100.0 %"] * len(COLUMN_NAMES)
    rows = [["client-0123abcd", *shares, "123", "123.4M", "123.4 GB", "123.4 GB"] for _ in range(3)]
    text = format_tables(head, rows)
    assert_narrow(text)
    first, second = text.split("\n\n")
    assert [line.split()[0] for block in (first, second) for line in block.splitlines()] == [
        "node", *["client-0123abcd"] * 3,
    ] * 2  # fmt: skip
    for name in head[1:]:
        assert (name in first) != (name in second)
    assert format_table(["a" * 90, "b"], [["x", "y"]], columns=20, spare=["b"]) == "a" * 90 + "\nx"
    assert lay_out(["place", "figure"], ["waiting"], 80) == "place | figure | waiting"
    assert lay_out(["place", "figure", "f" * 90], ["waiting"], 20) == "place | figure\nwaiting"
    assert format_tables(head[:5], [row[:5] for row in rows]) == format_table(head[:5], [row[:5] for row in rows])


def test_a_bar_gives_its_room_to_the_figures() -> None:
    note = "3 min 05 s simulated, 12 rounds given up"
    assert_narrow(format_progress("playing, round", 5, 10, 100.0, str, note, TEXT_COLUMNS), note, "1 min 40 s left")
    assert "[###" in format_progress("playing, round", 5, 10, 100.0, str, "", TEXT_COLUMNS)
