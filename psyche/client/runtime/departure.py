"""The end of a client: wait for the answer to its withdrawal, or serve the final weights (F26, P8)."""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from psyche.client.engine.actions import Exit
from psyche.client.runtime.weights.loading import Log
from psyche.network.streams import run_until
from psyche.telemetry import types

LAST_WRITES_S: Final = 600.0  # for an export that still runs when the client has finished serving
LAST_UPLOAD_S: Final = 6 * 3_600.0  # for the upload of a run's final weights
FAREWELL_S: Final = 0.2
WITHDRAW_S: Final = 2.0  # for the answer to the withdrawal: a server that is away withdraws this client itself (H6)


class Departure:
    """Carries out `Exit` once, each step within `grace_s`; a second `Exit` cuts short the serving of the first."""

    def __init__(
        self, grace_s: float, wait_for_writes: Callable[[], Awaitable[None]], log: Log,
        wait_for_uploads: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:  # fmt: skip
        self._grace_s = grace_s
        self._wait_for_writes = wait_for_writes
        self._wait_for_uploads = wait_for_uploads
        self._log = log
        self._exit: Exit | None = None
        self._withdrawn = trio.Event()  # the withdrawal is answered, or none was sent
        self._withdrawn.set()
        self._hurry = trio.Event()
        self._ended = trio.Event()

    def note_withdrawing(self) -> None:
        """A withdrawal is being sent: `leave` waits a little for its answer."""
        self._withdrawn = trio.Event()

    def note_withdrawn(self) -> None:
        self._withdrawn.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._exit.code if self._exit is not None else 1

    @property
    def is_stopped(self) -> bool:
        return self._exit is not None and self._exit.cause is types.LeaveCause.STOPPED

    async def leave(self, action: Exit) -> None:
        """Let the last messages go out, or serve the final weights; then `wait` returns."""
        if self._exit is not None:
            self._hurry.set()
            return
        self._exit = action
        if action.serve_s > 0:
            await self._serve(action.serve_s)
        else:
            await trio.sleep(min(FAREWELL_S, self._grace_s))  # time for Leave to be sent
            with trio.move_on_after(min(WITHDRAW_S, self._grace_s)):
                await self._withdrawn.wait()
        self._log(types.ClientEnded(reason=action.reason, code=action.code, cause=action.cause))
        self._ended.set()

    async def _serve(self, seconds: float) -> None:
        """P8: serve the final weights for a while, then wait for writes and uploads; a second Exit ends all at once."""
        self._log(types.Serving(seconds=seconds))
        with trio.move_on_after(seconds):
            await self._hurry.wait()
        with trio.move_on_after(LAST_WRITES_S):
            await run_until(self._hurry, self._wait_for_writes)
        with trio.move_on_after(LAST_UPLOAD_S):
            await run_until(self._hurry, self._wait_for_uploads)
