"""The waits of a backend: what it waits for is said once, when it begins and when it ends."""

from psyche.telemetry import types
from psyche.telemetry.sink import EventSink


class NamedWaits:
    """Emits the beginning and the end of each wait.

    Args:
        sink: receives the events.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._open: dict[types.Wait, types.WaitStarted] = {}

    def __contains__(self, wait: types.Wait) -> bool:
        return wait in self._open

    def start(self, wait: types.Wait, what: str, then: str) -> bool:
        """Say that a wait has started, unless it goes on; return whether it is said now."""
        known = self._open.get(wait)
        if known is not None and known.what == what:
            return False
        self.end(wait, types.WaitOutcome.REPLACED)
        self._open[wait] = types.WaitStarted(what=what, until=None, then=then, wait=wait)
        self._sink.emit(self._open[wait])
        return True

    def end(self, wait: types.Wait, outcome: types.WaitOutcome) -> None:
        known = self._open.pop(wait, None)
        if known is not None:
            self._sink.emit(types.WaitEnded(what=known.what, until=None, outcome=outcome, wait=wait))
