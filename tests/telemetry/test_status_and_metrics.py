"""A node's status is folded from its events alone."""

import io
import time

import pytest
from kits.log import make

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import EventLog, read_event
from psyche.telemetry.status import (
    IDLE_INTERVAL_S,
    NOTE_S,
    NodeView,
    Rate,
    StatusLine,
    format_node_status,
    format_waiting,
)
from psyche.telemetry.text import format_bytes, format_clock, format_count, format_number, format_seconds, format_table


def fold(*events: types.Event) -> NodeView:
    view = NodeView("client-1")
    for number, event in enumerate(events):
        view.update(float(number), event)
    return view


def wait_for(what: str, until: float | None, then: str) -> types.WaitStarted:
    return make(types.WaitStarted, what=what, until=until, then=then)


def test_the_status_shows_position_phase_loss_and_traffic() -> None:
    view = fold(
        make(types.ClientStarted),
        make(types.StateChanged, epoch=2, height=7, run_state=RunState.ROUND_TRAIN, step=31, members=3),
        make(types.Trained, epoch=2, height=7, loss=2.5, tokens=4000, seconds=0.5),
        make(types.Network, bytes_sent=45_088, bytes_received=90_176),
    )
    line = format_node_status(view, 3.0)
    assert line.startswith("epoch 2 round 7 step 31 | training | loss 2.500 | 3 healthy members | 2.7k tok/s")
    assert "up 45.1 kB down 90.2 kB" in line
    view.update(4.0, make(types.StateChanged, run_state=RunState.COOLDOWN))
    assert "tok/s" not in format_node_status(view, 4.0), "outside of rounds there is no speed"


APPLIED = make(types.Applied, epoch=1, height=0, count=2, digest=b"\xaa")


@pytest.mark.parametrize(
    ("trouble", "words", "end"),
    [
        (make(types.EpochFailed, reason="Warmup abandoned"), "epoch given up: Warmup abandoned", APPLIED),
        (make(types.Error, message="no"), "no", APPLIED),
        (make(types.Behind), "behind, catches up", make(types.Healed)),
        (make(types.Diverged), "different weights", make(types.Digest, digest=b"\xaa", agreed=True)),
        (make(types.Diverged), "different weights", make(types.ModelLoaded)),
        (make(types.LeftEpoch, reason="the trainer was lost"), "trainer was lost", make(types.Member, index=1)),
        (make(types.BackendLost), "cannot reach the run's record", make(types.BackendConnected)),
    ],
)
def test_a_notice_goes_with_its_cause(trouble: types.Event, words: str, end: types.Event) -> None:
    assert words in format_node_status(fold(trouble), 1.0)
    assert "!" not in format_node_status(fold(trouble, end), 2.0)
    goes_by_work = isinstance(trouble, types.EpochFailed | types.Error | types.Behind)
    assert ("!" in format_node_status(fold(trouble, APPLIED), 2.0)) != goes_by_work


def test_a_notice_whose_end_nobody_sees_fades_and_others_stay() -> None:
    given_up, lost = fold(make(types.EpochFailed, reason="x")), fold(make(types.BackendLost))
    assert "given up" in format_node_status(given_up, NOTE_S - 1)
    assert "given up" not in format_node_status(given_up, NOTE_S)
    assert "cannot reach" in format_node_status(lost, 9 * NOTE_S)


def test_the_last_line_of_a_dropped_client_says_why_it_was_dropped() -> None:
    dropped = make(types.Dropped, reason="too slow: ...")
    assert "! dropped from the epoch: too slow: ..." in format_node_status(fold(dropped), 1e6)
    stopped = fold(dropped, make(types.ClientEnded, reason="stopped by SIGINT"))
    assert "! stopped by SIGINT; dropped from the epoch: too slow: ..." in format_node_status(stopped, 1e6)
    finished = fold(dropped, make(types.Finished, held=False))
    assert "! dropped from the epoch: too slow: ..." in format_node_status(finished, 1e6)
    assert "dropped" not in format_node_status(fold(dropped, make(types.Member, index=1)), 1e6)


@pytest.mark.parametrize(("kind", "phase"), [(types.LeftEpoch, "left the epoch"), (types.ClientEnded, "ended")])
def test_who_has_left_knows_why_the_epoch_failed(kind: type[types.Event], phase: str) -> None:
    view = fold(make(kind, reason="stopped by SIGINT"), make(types.EpochFailed, reason="x"))
    assert format_node_status(view, 2.0).endswith(f" | {phase} | ! stopped by SIGINT")
    assert view.epochs_failed == 1


def test_members_are_named_as_the_user_knows_them() -> None:
    wait = make(
        types.WaitStarted, what="said in the log", wait=types.Wait.PAYLOADS, members=(0, 2), height=5, apply_height=7
    )
    names = {0: "client 2", 1: "client 3", 2: "client 1"}
    of_round = "of round 5, to apply in round 7"
    assert types.describe_wait(wait, names) == f"payloads of client 2, client 1 {of_round}"
    assert types.describe_wait(wait, {0: "client 2"}) == f"payloads of members 0, 2 {of_round}"
    one = make(types.WaitStarted, wait=types.Wait.OTHERS_FINISHED, members=(1,), height=5)
    assert types.describe_wait(one) == "member 1 to finish round 5"
    many = make(types.WaitStarted, what="more than 8 members to finish round 5", wait=types.Wait.OTHERS_FINISHED)
    assert types.describe_wait(many, names) == many.what


def test_a_wait_says_for_what_until_when_and_then() -> None:
    view = fold(wait_for("2 payloads", 100.0, "go on without them"), wait_for("1 more member", None, ""))
    clock = time.strftime("%H:%M:%S", time.localtime(100.0))
    expected = f"waiting for 2 payloads until {clock} (4 s), then go on without them"
    assert format_waiting(wait_for("2 payloads", 100.0, "go on without them"), 96.0) == expected
    assert expected in format_node_status(view, 96.0)
    view.update(3.0, make(types.WaitEnded, what="2 payloads", outcome=types.WaitOutcome.DONE))
    assert "waiting for 1 more member" in format_node_status(view, 96.0)


def test_a_lost_server_is_named_once_and_before_what_cannot_come_without_it() -> None:
    permission = make(types.WaitStarted, what="the owner to allow this key", wait=types.Wait.PERMISSION)
    server = make(types.WaitStarted, what="server a:1: cannot be reached (Connection refused)", wait=types.Wait.BACKEND)
    view = fold(permission, make(types.BackendLost), server)
    line = format_node_status(view, 3.0)
    assert "waiting for server a:1: cannot be reached (Connection refused)" in line
    assert "!" not in line
    view.update(4.0, make(types.WaitEnded, what=server.what))
    view.update(4.0, make(types.BackendConnected))
    assert "waiting for the owner to allow this key" in format_node_status(view, 4.0)


def test_a_restart_keeps_the_counters_and_drops_the_waits() -> None:
    view = fold(
        make(types.ClientStarted), wait_for("x", 5.0, "y"), make(types.Network, bytes_sent=100, bytes_received=200),
        make(types.ClientStarted), make(types.Network, bytes_sent=10, bytes_received=20),
    )  # fmt: skip
    assert (view.starts, view.bytes_sent, view.bytes_received) == (2, 110, 220)
    assert view.waiting is None


def test_a_replayed_round_counts_once() -> None:
    applied = make(types.Applied, epoch=1, height=4, count=3, digest=b"\xaa")
    view = fold(applied, applied, make(types.Applied, epoch=1, height=5, count=0, digest=b"\xbb"))
    assert (view.rounds_applied, view.digest) == (1, "bb")


def test_failures_and_the_end_are_seen() -> None:
    view = fold(
        make(types.EpochFailed, reason="no digest", steps_lost=8), make(types.Behind), make(types.Healed),
        make(types.Digest, digest=b"\xcc", agreed=True), make(types.Finished, digest=b"\xdd", step=240, held=True),
    )  # fmt: skip
    assert (view.epochs_failed, view.steps_lost, view.heals) == (1, 8, 1)
    assert (view.finished, view.digest, view.step, view.phase) == (True, "dd", 240, "finished")


def test_unknown_kinds_and_malformed_fields_change_nothing() -> None:
    malformed = {"t": 1.0, "node": "n", "kind": "state_changed", "epoch": "x", "members": True}
    view = fold(read_event(malformed), read_event({"t": 2.0, "node": "n", "kind": "of another version", "epoch": 9}))
    assert (view.epoch, view.members) == (0, 0)


def test_without_a_terminal_lines_come_at_changes_and_now_and_then() -> None:
    log = EventLog(None, node="client-1", now=lambda: 0.0)
    stream = io.StringIO()
    clock = [0.0]
    line = StatusLine(log.subscribe(), "client-1", Console(stream, live=False), now=lambda: clock[0])
    line.refresh()
    for state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.ROUND_TRAIN):
        log.emit(make(types.StateChanged, run_state=state, step=1))
        line.refresh()
    assert stream.getvalue().count("\n") == 2
    clock[0] = 20.0
    log.emit(make(types.Network, bytes_sent=5, bytes_received=5))
    line.refresh()
    assert stream.getvalue().count("\n") == 2  # traffic alone is no news
    log.emit(make(types.RoundStarted, height=1, step=2))
    line.refresh()
    assert stream.getvalue().count("\n") == 3
    for later_s, lines in ((14.0, 3), (IDLE_INTERVAL_S - 1.0, 3), (IDLE_INTERVAL_S, 4)):
        clock[0] = 20.0 + later_s
        line.refresh()
        assert stream.getvalue().count("\n") == lines, "while nothing changes, a sign of life"
    line.close()


def test_on_a_terminal_the_line_is_redrawn_in_place() -> None:
    log = EventLog(None, node="client-1", now=lambda: 0.0)
    stream = io.StringIO()
    line = StatusLine(log.subscribe(), "client-1", Console(stream, live=True), now=lambda: 0.0)
    line.refresh()
    assert "connecting" in stream.getvalue()
    log.emit(make(types.BackendConnected))
    line.refresh()
    line.close()
    assert "starting: loads PyTorch" in stream.getvalue(), "what takes so long"
    assert "\n" not in stream.getvalue()


def test_a_rate_forgets_what_left_its_window() -> None:
    clock = [100.0]
    rate = Rate(lambda: clock[0])
    assert rate.per_second() == 0.0
    for _ in range(40):
        clock[0] += 1.5
        rate.add(50)
    assert rate.per_second() == pytest.approx(100 / 3, rel=0.06)
    clock[0] += 30
    assert rate.per_second() == 0.0
    clock[0] -= 5.0
    rate.add(10)  # a clock that goes back breaks nothing
    assert rate.total == 2010


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(999), "999 B"),
        (format_bytes(45_088), "45.1 kB"),
        (format_bytes(1_837_312), "1.8 MB"),
        (format_bytes(999_950), "1.0 MB"),
        (format_bytes(5e15), "5000.0 TB"),
        (format_seconds(0.416), "0.42 s"),
        (format_seconds(-1), "0 s"),
        (format_seconds(59.7), "1 min 00 s"),
        (format_seconds(7_620), "2 h 07 min"),
        (format_seconds(172_799), "47 h 59 min"),
        (format_seconds(1_054_900), "12 days 5 h"),
        (format_number(1, "member"), "1 member"),
        (format_number(0, "member"), "0 members"),
        (format_number(2, "client waits", "clients wait"), "2 clients wait"),
        (format_count(950), "950"),
        (format_count(10_240), "10.2k"),
        (format_count(3e15), "3000.0T"),
        (format_clock(2.0**65), "the end of time"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected


def test_a_table_aligns_its_columns() -> None:
    assert format_table(["client", "loss"], [["1", "2.5"], ["10", "12.25"]]) == (
        "client   loss\n1         2.5\n10      12.25"
    )
