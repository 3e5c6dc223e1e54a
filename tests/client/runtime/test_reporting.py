"""K8: what a client tells the backend about itself, folded from its own events, and how often."""

from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from kits.log import Log, make
from trio.testing import MockClock

from psyche.backends import port
from psyche.client.runtime.reporting import ERROR_AFTER_S, LOOK_S, REPEAT_S, REPORT_EVERY_S, Reporter
from psyche.core.committee.verdicts import Verdict
from psyche.core.state.state import RunState
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause, Wait
from psyche.wire.report import MAX_ERROR_BYTES, SelfReport

TRAINING = make(types.StateChanged, run_state=RunState.ROUND_TRAIN, epoch=2, height=3, step=40)
LOAD_FAILED = make(types.LoadFailed, reason="config.json: no such file")
APPLIED = make(types.Applied, epoch=2, height=2, count=3)


@dataclass
class Backend:
    told: list[tuple[float, SelfReport]] = field(default_factory=list)

    def report(self, report: SelfReport) -> None:
        self.told.append((trio.current_time(), report))


def fold(*events: types.Event) -> SelfReport:
    reporter = Reporter(Log(), "ada", unix_now=lambda: 100.0)
    for event in events:
        reporter.emit(event)
    return reporter.make_report()


def test_events_are_passed_on_as_they_are() -> None:
    log = Log()
    Reporter(log, "ada").emit(TRAINING)
    assert log.told == [TRAINING]


def test_a_report_tells_what_its_client_has_found_of_others() -> None:
    audit = make(types.Audited, key="ab" * 8, distance=0.5, verdict=Verdict.FAIL)
    report = fold(TRAINING, audit, make(types.ArithmeticOff, key="cd" * 8, epoch=2, distance=0.03))
    assert report.audits == (0, 0, 1)
    found = [(one.key.hex()[:2], one.worst, one.odd_by) for one in report.audited]
    assert found == [("ab", 0.5, 0.0), ("cd", 0.0, 0.03)]


def test_a_report_tells_place_loss_speed_and_wait() -> None:
    payloads = make(types.WaitStarted, what="payloads of members 1", wait=Wait.PAYLOADS, until=9.0)
    dial = make(types.WaitStarted, what="bootstrap peer at /ip4/10.0.0.1", wait=Wait.BOOTSTRAP_DIAL, until=1.0)
    report = fold(TRAINING, make(types.Trained, loss=2.5, tokens=300), dial, payloads)
    assert (report.name, report.phase, report.wait) == ("ada", "training", "payloads of members 1")
    assert (report.epoch, report.height, report.step, report.loss) == (2, 3, 40, 2.5)
    assert report.tokens_per_s > 0


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (LOAD_FAILED, "cannot load the weights: config.json: no such file"),
        (make(types.TrainerLost, reason="killed by SIGKILL"), "the trainer was lost: killed by SIGKILL"),
        (make(types.Error, message="no room on the disk"), "no room on the disk"),
        (make(types.LeftEpoch, reason="fell behind", cause=LeaveCause.BEHIND), "fell behind"),
        (make(types.ClientEnded, reason="Ctrl-C", cause=LeaveCause.STOPPED, code=0), ""),
        (make(types.ClientEnded, reason="the run is finished", cause=LeaveCause.FINISHED, code=0), ""),
    ],
)
def test_what_keeps_a_client_from_its_part_is_its_error(event: types.Event, words: str) -> None:
    assert fold(TRAINING, event).error == words


def test_an_error_outlives_the_epoch_that_failed_by_it_and_a_later_stop() -> None:
    failed = make(types.EpochFailed, reason="Warmup abandoned")
    stopped = make(types.ClientEnded, reason="Ctrl-C", cause=LeaveCause.STOPPED, code=0)
    assert fold(LOAD_FAILED, failed, stopped).error.startswith("cannot load")


@pytest.mark.parametrize("cure", [APPLIED, make(types.ModelLoaded), make(types.Healed)])
def test_an_error_is_over_once_the_client_does_its_part_again(cure: types.Event) -> None:
    assert fold(LOAD_FAILED, cure).error == ""


def test_a_long_error_is_cut_to_what_the_backend_takes() -> None:
    assert len(fold(make(types.Error, message="é" * 9_000)).error.encode()) == MAX_ERROR_BYTES


async def test_a_client_reports_changes_every_five_seconds_and_errors_within_one(autojump_clock: MockClock) -> None:
    backend, reporter = Backend(), Reporter(Log(), "ada", unix_now=lambda: 100.0)
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run, cast("port.Backend", backend))
        await trio.sleep(0.1)
        for height in range(9):
            reporter.emit(make(types.RoundStarted, height=height))
            await trio.sleep(1)
        reporter.emit(LOAD_FAILED)
        await trio.sleep(REPEAT_S + 8)
        nursery.cancel_scope.cancel()
    times = [round(at - start, 3) for at, _ in backend.told]
    assert times[:2] == [0, REPORT_EVERY_S]
    error_at = next(at for at, report in backend.told if report.error) - start
    assert 9 <= error_at <= 9.1 + ERROR_AFTER_S + LOOK_S
    assert times[-1] - times[-2] == pytest.approx(REPEAT_S, abs=LOOK_S), "unchanged, it is repeated"
    assert len(times) == 4


async def test_a_client_that_fails_reports_once_more_before_it_ends(autojump_clock: MockClock) -> None:
    backend, reporter = Backend(), Reporter(Log(), "ada")
    unusable = LeaveCause.UNUSABLE_MODEL
    reporter.emit(make(types.ClientEnded, reason="the model's plan cannot be used", cause=unusable, code=1))
    await reporter.say_last(cast("port.Backend", backend))
    assert [report.error for _, report in backend.told] == ["the model's plan cannot be used"]
