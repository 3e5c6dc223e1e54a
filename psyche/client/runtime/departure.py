"""The end of a client: a last withdrawal is answered, the final weights are served for a while (F26, P8)."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from psyche.client.engine.actions import Exit
from psyche.client.runtime.weights.loading import Log
from psyche.telemetry import kinds

LAST_WRITES_S: Final = 600.0  # for an export that still runs when the run is over
FAREWELL_S: Final = 0.2
WITHDRAW_S: Final = 2.0  # for the answer to a last withdrawal: a server that is away withdraws us itself (H6)


class Departure:
    """Carries out `Exit`, once; a second one means that nobody waits for the first one's serving any more.

    Args:
        grace_s: no farewell takes longer.
        wait_for_writes: until the trainer has nothing left to write.
    """

    def __init__(self, grace_s: float, wait_for_writes: Callable[[], Awaitable[None]], log: Log) -> None:
        self._grace_s = grace_s
        self._wait_for_writes = wait_for_writes
        self._log = log
        self._exit: Exit | None = None
        self._withdrawn = trio.Event()  # the last withdrawal is answered
        self._withdrawn.set()
        self._hurry = trio.Event()
        self._ended = trio.Event()

    def note_withdrawing(self) -> None:
        """A withdrawal goes out: leaving waits a little for its answer."""
        self._withdrawn = trio.Event()

    def note_withdrawn(self) -> None:
        """It was answered, or failed."""
        self._withdrawn.set()

    async def wait(self) -> int:
        """Until the client has left; its exit code."""
        await self._ended.wait()
        return self._exit.code if self._exit is not None else 1

    async def leave(self, action: Exit) -> None:
        """Say farewell, or serve the final weights; `wait` ends then."""
        if self._exit is not None:
            self._hurry.set()
            return
        self._exit = action
        if action.serve_s > 0:
            await self._serve(action.serve_s)
        else:
            await trio.sleep(min(FAREWELL_S, self._grace_s))  # let Leave go out
            with trio.move_on_after(min(WITHDRAW_S, self._grace_s)):
                await self._withdrawn.wait()
        self._log(kinds.Left(reason=action.reason, code=action.code, cause=action.cause))
        self._ended.set()

    async def _serve(self, seconds: float) -> None:
        """P8: serve the final weights for a while, and finish writing them; a second Exit ends that at once."""
        self._log(kinds.Serving(seconds=seconds))
        with trio.move_on_after(seconds):
            await self._hurry.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_on_hurry, nursery.cancel_scope)
            with trio.move_on_after(LAST_WRITES_S):
                await self._wait_for_writes()
            nursery.cancel_scope.cancel()

    async def _cancel_on_hurry(self, scope: trio.CancelScope) -> None:
        await self._hurry.wait()
        scope.cancel()
