"""The console of a watched run: what deserves a line gets one, and what is waited for is said once for all."""

import io
from pathlib import Path

import pytest
from kits.log import make

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import EventLog
from psyche.watch.app import ConsoleView
from psyche.watch.page import format_view
from psyche.watch.sources import LogSource


class Bench:
    """Logs of clients in a folder, and a console that draws them; the clock stands until it is moved."""

    def __init__(self, folder: Path, clients: int, *, live: bool = False) -> None:
        self.now, self.stream = 1_020.0, io.StringIO()
        names = [f"client-{number}" for number in range(1, clients + 1)]
        self.logs = [EventLog(folder / n / "events.jsonl", node=n, now=lambda: self.now) for n in names]
        self.source = LogSource(folder)
        self.console = ConsoleView([self.source.view], Console(self.stream, live=live), now=lambda: self.now)

    def refresh(self) -> str:
        while self.source.read():
            pass
        self.console.refresh()
        return self.stream.getvalue()

    def draw(self) -> list[str]:
        self.refresh()
        return format_view(self.source.view, self.now).splitlines()


def test_a_long_wait_is_wrapped_and_names_clients(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 3)
    for log, index in zip(bench.logs, (2, 0, 1), strict=True):
        log.emit(make(types.StateChanged, run_state=RunState.WARMUP, epoch=4, step=2, members=3))
        log.emit(types.Member(index=index, members=3))
    bench.logs[2].emit(
        make(
            types.WaitStarted, what="payloads of members [0, 2] of round 5, to apply in round 7", until=1_025.0,
            then="fall behind: keep fetching, stop training", wait=types.Wait.PAYLOADS, members=(0, 2), height=5,
            apply_height=7,
        )
    )  # fmt: skip
    lines = bench.draw()
    assert max(map(len, lines)) <= 80
    wait = " ".join(" ".join(lines).partition("client-3 waits")[2].split())
    assert wait.startswith("for payloads of client-2, client-1 of round 5, to apply in round 7 until")
    assert wait.endswith("(5 s), then fall behind: keep fetching, stop training")


def test_what_several_clients_wait_for_is_said_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 3)
    for log in (bench.logs[0], bench.logs[2]):
        log.emit(make(types.StateChanged, run_state=RunState.PAUSED))
        log.emit(make(types.WaitStarted, what="the owner to resume the run", then="join again"))
    assert bench.draw()[-1] == "client-1, client-3 wait for the owner to resume the run, then join again"


def test_what_happens_again_and_again_is_told_now_and_then(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 2)
    for _ in range(31):
        for log in bench.logs:
            log.emit(types.Error(message="no weights"))
        bench.refresh()
        bench.now += 1.0
    for name in ("client-1", "client-2"):
        assert bench.stream.getvalue().count(f"  {name} error: no weights\n") == 2


@pytest.mark.parametrize("live", [False, True])
def test_notable_events_are_told_with_their_reason_unless_they_are_passed_over(tmp_path: Path, *, live: bool) -> None:
    bench = Bench(tmp_path, 1, live=live)
    (log,) = bench.logs
    log.emit(make(types.EpochFailed, reason="no digest", steps_lost=8))
    log.emit(types.Error(message="the trainer hung", trainer="hung"))
    text = bench.refresh()
    assert "client-1 epoch given up: no digest, steps lost: 8" in text
    assert "client-1 error: the trainer hung" in text
    log.emit(make(types.EpochFailed, reason="the server is gone"))
    while bench.source.read():
        pass
    bench.console.skip_lines()
    assert "client-1 epoch given up: the server is gone" not in bench.refresh(), "what ends on request is no news"


def test_without_a_terminal_a_line_comes_when_the_stage_changes_and_every_ten_seconds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 1)
    (log,) = bench.logs
    for height in range(30):
        log.emit(make(types.StateChanged, run_state=RunState.ROUND_TRAIN, height=height, step=height + 1, members=1))
        bench.refresh()
        bench.now += 1.0
    lines = bench.stream.getvalue().splitlines()
    assert [line.partition("step ")[2].partition(" ")[0] for line in lines] == ["1", "11", "21"]
    log.emit(make(types.StateChanged, run_state=RunState.FINISHED, step=31))
    assert "step 31 | finished" in bench.refresh().splitlines()[-1]
