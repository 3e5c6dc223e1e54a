"""`psyche watch`: logs that are live, rotate or are torn; a server that is killed; alerts once for each cause."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from kits.clocks import SteadyClock
from kits.log import make
from server.live_kit import build_file, follow_all, is_finished, is_training, open_scripts, open_server

from psyche.analysis.run_view import RunView
from psyche.backends.tcp.owner import TcpAdministration
from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.testing.builders import build_identity
from psyche.watch.alerts import OVER_S, Alerts, AlertState
from psyche.watch.page import format_line, format_view
from psyche.watch.sources import LogSource, RunSource

KEY = bytes(range(32))


def read_all(source: LogSource) -> None:
    source._look_at = float("-inf")
    while source.read():
        pass


def emit_round(log: EventLog, height: int) -> None:
    log.emit(make(types.StateChanged, run_state=RunState.ROUND_TRAIN, height=height, step=height + 1))
    log.emit(make(types.Trained, height=height, step=height + 1, loss=3.0, tokens=5, seconds=0.1))


def test_a_live_log_is_followed_across_rotations_with_what_stood_before(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "ada" / "events.jsonl", node="ada", max_bytes=4_000, keep=50)
    for height in range(60):
        emit_round(log, height)
    source = LogSource(tmp_path)
    read_all(source)
    assert source.view.nodes["ada"].rounds_trained == 60
    for height in range(60, 200):
        emit_round(log, height)
        if height % 7 == 0:
            read_all(source)
    other = EventLog(tmp_path / "ben" / "events.jsonl", node="ben")
    emit_round(other, 199)
    read_all(source)
    assert source.view.nodes["ada"].rounds_trained == 200
    assert source.view.nodes["ben"].rounds_trained == 1
    assert source.view.passed.missing == 0


def test_torn_lines_other_kinds_wild_times_and_files_that_go_away_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, node="ada", max_bytes=4_000, keep=1)
    emit_round(log, 0)
    source = LogSource(tmp_path)
    read_all(source)
    with path.open("ab") as file:
        file.write(b'{"t":1,"node"\n{"t":1e308,"node":"ada","kind":"x"}\n{"t":NaN,"node":"ada","kind":"x"}\n')
        file.write(b'{"t":2,"node":"ada","kind":"of_the_future","new":1}\n\xff\xfe\n' + b"a" * 10_000 + b"\n")
    read_all(source)
    with path.open("rb"):  # open, so that no new file gets its inode
        path.unlink()
        log = EventLog(path, node="ada", max_bytes=4_000, keep=1)
        for height in range(1, 60):  # rotates more often than is read
            emit_round(log, height)
        read_all(source)
    passed = source.view.passed
    assert (passed.torn, passed.unknown) == (5, 1)
    assert passed.missing == 1
    assert source.view.step == 60
    format_view(source.view, 1_000.0)


def test_events_of_several_nodes_are_taken_in_order_of_time(tmp_path: Path) -> None:
    clock = [0.0]
    logs = [EventLog(tmp_path / f"{n}" / "events.jsonl", node=f"n{n}", now=lambda: clock[0]) for n in range(3)]
    for height in range(2_000):
        for log in logs:
            clock[0] += 0.1
            emit_round(log, height)
    source = LogSource(tmp_path)
    seen: list[float] = []
    take = source.view.take
    source.view.take = lambda entry: (seen.append(entry.t), take(entry))[0]  # type: ignore[method-assign,func-returns-value,assignment]
    read_all(source)
    assert seen == sorted(seen)
    assert len(seen) == 12_000


def test_each_cause_is_told_once_and_once_when_it_is_over() -> None:
    view, state = RunView("run"), AlertState()
    assert state.look([view], 0.0) == []
    view.take_problem("no answer", 1.0)
    (begun,) = state.look([view], 1.0)
    assert (begun["PSYCHE_ALERT"], begun["PSYCHE_ALERT_STATE"], begun["PSYCHE_ALERT_RUN"]) == ("still", "begun", "run")
    assert state.look([view], 2.0) == []
    view.problem = ""
    assert state.look([view], 3.0) == [], "it may come back at once"
    view.take_problem("no answer", 4.0)
    assert state.look([view], 4.0) == []
    view.problem = ""
    (over,) = state.look([view], 4.0 + OVER_S)
    assert (over["PSYCHE_ALERT"], over["PSYCHE_ALERT_STATE"]) == ("still", "over")


async def test_what_strangers_say_reaches_the_command_as_a_variable_and_not_as_code(tmp_path: Path) -> None:
    view = RunView("run")
    text = f"$(touch {tmp_path}/a); `touch {tmp_path}/b` ' \" \n touch {tmp_path}/c"
    view.take_problem(text, 1.0)
    alerts = Alerts(f'printf "%s" "$PSYCHE_ALERT_TEXT" > {tmp_path}/told')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alerts.run)
        alerts.look([view], 1.0)
        with trio.fail_after(60):
            while not (told := tmp_path / "told").exists() or not told.read_text():
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["told"]
    assert told.read_text() == " ".join(text.split())


async def test_a_command_that_hangs_is_killed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche.watch.alerts.COMMAND_S", 0.2)
    alerts, view = Alerts("sleep 1000"), RunView("run")
    view.take_problem("no answer", 1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alerts.run)
        alerts.look([view], 1.0)
        with trio.fail_after(60):
            while "was killed" not in alerts.failed:
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()


async def test_a_killed_server_is_trouble_and_its_return_the_end_of_it(tmp_path: Path, clock: SteadyClock) -> None:
    async with open_server(tmp_path, build_file(total_steps=6)) as server, open_scripts(server) as scripts:
        source = RunSource(TcpAdministration(server.address, build_identity("x"), 40.0), shows_members=True)
        await source.refresh()
        await follow_all(scripts, is_training)
        await source.refresh()
        assert source.view.phase == "training"
        await server.stop()
        await source.refresh()
        assert [one.cause for one in source.view.get_troubles(time.time())] == ["still"]
        await server.start()
        while source.view.problem:
            await source.refresh()
        await follow_all(scripts, is_finished)
        await source.refresh()
    view = source.view
    assert view.phase == "finished"
    assert [point.step for point in view.curve] == list(range(2, view.step + 1))
    assert view.get_troubles(1e10) == []
    assert f"step {view.step} of 6" in format_line(view, 1.0)


@pytest.fixture
def clock() -> SteadyClock:
    return SteadyClock(16)


@contextmanager
def run_watch(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "psyche", "watch", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never was")


def test_the_command_prints_lines_raises_alerts_and_ends_at_a_signal(tmp_path: Path) -> None:
    logs, told = tmp_path / "logs", tmp_path / "told"
    log = EventLog(logs / "ada" / "events.jsonl", node="ada")
    emit_round(log, 0)
    alert = f'echo "$PSYCHE_ALERT $PSYCHE_ALERT_STATE $PSYCHE_ALERT_WHO" >> {told}'
    with run_watch(str(logs), "--alert", alert) as process:
        log.emit(types.Diverged(height=1, digest=KEY, agreed=KEY))
        wait_until(told.exists)
        log.emit(types.TrainerLost(reason="gone"))
        log.emit(types.Healed(height=2))
        wait_until(lambda: told.read_text().count("\n") == 2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    assert told.read_text().splitlines() == ["weights begun ada", "weights over ada"]
    assert "ada holds other weights" in output
    assert "ada lost its trainer: gone\n" in output, "a line when it happens"
    assert os.linesep in output
