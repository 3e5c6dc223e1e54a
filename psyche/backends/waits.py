"""What every backend does alike: it runs while it is open, and tells what it waits for and whether clocks agree."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

import trio

from psyche.errors import PsycheError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.telemetry.text import format_seconds
from psyche.wire.nursery import open_plain_nursery

_Given = ParamSpec("_Given")


class _Running(Protocol):
    async def run(self) -> None: ...


_Made = TypeVar("_Made", bound=_Running)


def opens(make: Callable[_Given, _Made]) -> Callable[_Given, AbstractAsyncContextManager[_Made]]:
    """What makes something and runs it while a block runs, which is cancelled if that gives up for good."""

    @asynccontextmanager
    async def open_made(*args: _Given.args, **options: _Given.kwargs) -> AsyncGenerator[_Made]:
        made = make(*args, **options)
        async with open_plain_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()

    return open_made


@dataclass(frozen=True, slots=True)
class BackendStatistics:
    unanswered: int  # requests, or messages that are being sent


class Progress:
    """What several tasks wait for, until `fail` gives up for good: from then on each of them gets that error.

    `explain` makes the error to raise of the first reason.
    """

    def __init__(self, explain: Callable[[PsycheError], PsycheError]) -> None:
        self._explain = explain
        self._changed = trio.Event()
        self._failure: PsycheError | None = None

    async def wait_until(self, is_met: Callable[[], object]) -> None:
        self.check_alive()
        while not is_met():
            await self._changed.wait()
            self.check_alive()

    def note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def fail(self, error: PsycheError) -> None:
        self._failure = self._failure or error
        self.note_change()

    def check_alive(self) -> None:
        if self._failure is not None:
            raise self._explain(self._failure) from self._failure


class NamedWaits:
    """Emits the beginning and the end of each wait."""

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


WRONG_S: Final = 60.0  # less may be slow lines, whole seconds, or a chain whose clock lags


def describe_wrong_clock(own_unix: float, backend_unix: float, backend: str) -> str:
    """Say by how much a clock is wrong, and how it is set; empty if neither is."""
    ahead_s = own_unix - backend_unix
    if abs(ahead_s) < WRONG_S:
        return ""
    side = "ahead of" if ahead_s > 0 else "behind"
    return (
        f"this machine's clock is {format_seconds(abs(ahead_s))} {side} {backend}'s: "
        "set the one that is wrong (sudo timedatectl set-ntp true). Training goes by the backend's clock, but peers "
        "that are an hour apart do not pass on each other's addresses, and times in logs are wrong"
    )
