"""The final table says what the event logs and the weights on disk say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.log import make

from psyche.telemetry import types
from psyche.telemetry.events import Entry, EventLog
from psyche.testnet.ending import write_run
from psyche.testnet.report import (
    ClientReport,
    RunReport,
    build_client_report,
    build_report,
    find_problems,
    format_report,
    hash_weights,
)
from psyche.testnet.settings import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, tmp_path / "events")


def make_clock(step: float = 1.0) -> Iterator[float]:
    t = 1_000.0
    while True:
        t += step
        yield t


def write_client(layout: Layout, number: int, digest: str = "aa", *, weights: bytes = b"w") -> EventLog:
    clock = make_clock()
    log = EventLog(layout.events_of(f"client-{number}"), node=f"client-{number}", now=lambda: next(clock))
    log.emit(make(types.ClientStarted))
    log.emit(make(types.WarmupReady))
    log.emit(make(types.ModelLoaded, parameters=1_000))
    for step in (1, 2):
        log.emit(make(types.RoundStarted, height=step - 1, step=step))
        log.emit(make(types.Trained, step=step, loss=4.0 - step, tokens=100, seconds=0.5, compute_seconds=0.5))
        log.emit(make(types.Applied, height=step - 1, count=3))
    log.emit(make(types.Network, bytes_sent=500, bytes_received=700))
    folder = layout.checkpoints(number) / "run-step3"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    log.emit(make(types.Exported, path=str(folder)))
    log.emit(types.Finished(digest=bytes.fromhex(digest), step=3, held=True))
    return log


def test_a_report_is_folded_from_the_events_of_the_clients(layout: Layout) -> None:
    for number in (1, 2, 3):
        log = write_client(layout, number)
    for reason, failed in (("data: token 4000 is not below", True), ("the round was over", False)):
        log.emit(types.NotSent(height=2, reason=reason, failed=failed))
    report = build_report(layout, "demo", {1: 0, 2: 0, 3: 0}, {1: 2}, 12.34, "")
    client = report.clients[0]
    assert (client.rounds_trained, client.rounds_applied, client.tokens, client.step) == (2, 2, 200, 3)
    assert (client.loss, client.digest, client.kills, client.seconds_to_join) == (2.5, "aa", 2, 1.0)
    assert (client.bytes_sent, client.bytes_received) == (500, 700)
    assert client.compute_share == pytest.approx(1.0 / 3.0, abs=1e-3)
    assert [one.batches_failed for one in report.clients] == [0, 0, 1]
    assert (report.problems, report.equal) == ([], True)
    text = format_report(report)
    assert "all 3 clients hold bit-identical weights" in text
    assert "5.3 kB" in text  # 2 * 2/3 * 2 bytes * 1000 parameters * 2 rounds
    assert "epochs given up: 0, steps lost: 0, batches not trained: 1, kills: 2" in text


@pytest.mark.parametrize(
    ("digest", "weights", "exits", "problem"),
    [
        ("bb", b"w", {1: 0, 2: 0}, "the final digests differ"),
        ("aa", b"v", {1: 0, 2: 0}, "the exported weights differ"),
        ("aa", b"w", {1: 0, 2: 1}, "client-2 ended with exit code 1"),
    ],
)
def test_what_differs_is_a_problem(
    layout: Layout, digest: str, weights: bytes, exits: dict[int, int | None], problem: str
) -> None:
    write_client(layout, 1)
    write_client(layout, 2, digest, weights=weights)
    report = build_report(layout, "demo", exits, {}, 60.0, "")
    assert report.problems == [problem]
    assert f"PROBLEM: {problem}" in format_report(report)


def test_a_client_that_does_not_hold_the_certified_weights_shows_its_own_digest() -> None:
    lines = [
        Entry(1.0, "c", types.Digest(height=3, digest=b"own", agreed=False)),
        Entry(2.0, "c", types.Finished(digest=b"certified", step=9, held=False)),
    ]
    assert build_client_report("c", lines, 3).digest == b"own".hex()


@pytest.mark.parametrize("stopped", ["", "1 minute is over"])
@pytest.mark.parametrize(
    ("client", "problem"),
    [
        (ClientReport("c", digest="aa", exit_code=0), "c did not finish"),
        (ClientReport("c", digest="aa", exit_code=130), "c ended with exit code 130"),
    ],
)
def test_a_client_that_never_finished_is_a_problem_unless_the_run_was_stopped(
    client: ClientReport, problem: str, stopped: str
) -> None:
    assert find_problems(RunReport("demo", 1.0, [client], 0, stopped)) == ([] if stopped else [problem])
    idle = ClientReport("c", exit_code=0, finished=True)
    assert find_problems(RunReport("demo", 1.0, [idle], 0, stopped)) == ["no client has trained a round"]


def test_waits_are_compared_with_the_deadlines_they_named() -> None:
    entries = [
        Entry(t, "c", event)
        for t, event in (
            (1.0, make(types.WaitStarted, what="a", until=5.0)),
            (2.0, make(types.WaitStarted, what="members", until=None)),
            (5.5, make(types.WaitEnded, what="a")),
            (90.0, make(types.WaitEnded, what="members")),
            (91.0, make(types.WaitStarted, what="b", until=92.0)),
            (99.0, make(types.ClientStarted)),
            (99.5, make(types.WaitEnded, what="b")),
        )
    ]
    client = build_client_report("c", entries, 3)
    assert (client.waits, client.wait_overrun_s) == (3, 0.5)
    assert "waits: 3, the latest ended 0.50 s after its deadline" in format_report(RunReport("demo", 1.0, [client], 0))


def test_the_hash_of_weights_names_files_and_bytes(tmp_path: Path) -> None:
    assert hash_weights(tmp_path) == ""
    (tmp_path / "a.safetensors").write_bytes(b"1")
    one = hash_weights(tmp_path)
    (tmp_path / "a.safetensors").rename(tmp_path / "b.safetensors")
    assert len({"", one, hash_weights(tmp_path)}) == 3


def test_a_page_is_written_only_of_something(layout: Layout) -> None:
    assert not write_run(layout)
    write_client(layout, 1)
    assert write_run(layout)
    assert b"client-1" in layout.page.read_bytes()
