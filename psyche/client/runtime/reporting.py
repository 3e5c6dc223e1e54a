"""Tells the run's backend what this client does, for the owner to see (K8): folded from the client's own events."""

import time
from collections.abc import Callable
from typing import Any, Final

import trio

from psyche.analysis.audits import AuditsView
from psyche.backends.port import Backend
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.telemetry.status import NodeView, format_drop
from psyche.wire.report import SelfReport, clean_report

LOOK_S: Final = 0.25
REPORT_EVERY_S: Final = 5.0  # while something changes
ERROR_AFTER_S: Final = 1.0  # a new error is not held back longer
REPEAT_S: Final = 30.0  # while nothing changes
FAREWELL_S: Final = 0.2  # for the last report to be sent
_OWN_WILL: Final = frozenset({types.LeaveCause.STOPPED, types.LeaveCause.FINISHED, types.LeaveCause.BACKEND})
_DIALS: Final = frozenset({types.Wait.BOOTSTRAP_PLACE, types.Wait.BOOTSTRAP_DIAL})  # besides all else that it does
_CURES: Final = frozenset({types.ModelLoaded, types.Applied, types.Healed})


class Reporter:
    """A sink of events that passes them on, and tells the backend what they come to."""

    def __init__(self, log: EventSink, name: str, unix_now: Callable[[], float] = time.time) -> None:
        self._log = log
        self._view = NodeView(name)
        self._audits = AuditsView()
        self._unix_now = unix_now
        self._error = ""
        self._sent: SelfReport | None = None
        self._sent_at = 0.0

    def emit(self, event: types.Event) -> None:
        self._log.emit(event)
        self._view.update(self._unix_now(), event)
        self._audits.take(event)
        kind = type(event)
        if kind in _CURES:
            self._error = ""
        elif kind in _FAILURES:
            self._error = _FAILURES[kind](event) or self._error

    def make_report(self) -> SelfReport:
        view = self._view
        waits = [wait for wait in view.waits.values() if wait.wait not in _DIALS]
        error = self._error or (view.note if view.note_type is types.Diverged else "")
        first = min(waits, key=lambda wait: float("inf") if wait.until is None else wait.until, default=None)
        return clean_report(
            SelfReport(
                name=view.node, phase=view.phase, wait="" if first is None else types.describe_wait(first),
                epoch=view.epoch, height=view.height, step=view.step, loss=view.loss, tokens_per_s=view.tokens_per_s,
                error=error, bytes_sent=view.bytes_sent, bytes_received=view.bytes_received,
                audits=self._audits.count(), audited=self._audits.list_members(),
            )
        )  # fmt: skip

    async def run(self, backend: Backend) -> None:
        """Report until cancelled: soon after an error, and every few seconds while something changes."""
        while True:
            report = self.make_report()
            if self._is_due(report):
                self._send(backend, report)
            await trio.sleep(LOOK_S)

    async def say_last(self, backend: Backend) -> None:
        self._send(backend, self.make_report())
        await trio.sleep(FAREWELL_S)

    def _is_due(self, report: SelfReport) -> bool:
        if self._sent is None:
            return True
        since_s = trio.current_time() - self._sent_at
        if report.error != self._sent.error:
            return since_s >= ERROR_AFTER_S
        return since_s >= (REPEAT_S if report == self._sent else REPORT_EVERY_S)

    def _send(self, backend: Backend, report: SelfReport) -> None:
        self._sent, self._sent_at = report, trio.current_time()
        if backend.report is not None:
            backend.report(report)


def _describe_left(event: types.LeftEpoch | types.ClientEnded) -> str:
    return "" if event.cause in _OWN_WILL else event.reason


_FAILURES: Final[dict[type[types.Event], Callable[[Any], str]]] = {
    types.LoadFailed: lambda event: f"cannot load the weights: {event.reason}",
    types.TrainerLost: lambda event: f"the trainer was lost: {event.reason}",
    types.Error: lambda event: event.message,
    types.LeftEpoch: _describe_left,
    types.Dropped: format_drop,
    types.ClientEnded: _describe_left,
    types.CannotTakePart: lambda event: f"cannot take part: {event.reason}",
}
