"""The trainer in this process: the engine in a worker thread, one call at a time. For tests and `psyche train`."""

import threading
from collections.abc import Callable
from typing import TypeVar

import trio

from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.engine import TrainerEngine
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    LoadReply,
    LoadRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

T = TypeVar("T")


class LocalTrainer:
    """Implements `wire.ports.Trainer`. Calls wait for one another; waits are as long as the work.

    Cancelling the task that awaits `train` ends it at the next micro-batch too, with everything undone.
    """

    def __init__(self) -> None:
        self._engine = TrainerEngine()
        self._lock = trio.Lock()
        self._cancel = threading.Event()  # of the train that runs or waits; a new one each
        self._stopped = False

    async def _run(self, function: Callable[[], T]) -> T:
        if self._stopped:
            raise TrainerFailure(FailureKind.STOPPED, "trainer: stopped; make a new one")
        async with self._lock:
            # Not abandoned on cancel: the engine must not be entered twice.
            return await trio.to_thread.run_sync(function)

    async def load(self, request: LoadRequest) -> LoadReply:
        """See `TrainerEngine.load`."""
        return await self._run(lambda: self._engine.load(request, trio.from_thread.check_cancelled))

    async def train(self, request: TrainRequest) -> TrainReply:
        """See `TrainerEngine.train`."""
        cancel = self._cancel = threading.Event()

        def beat() -> None:
            trio.from_thread.check_cancelled()
            if cancel.is_set():
                raise Cancelled

        return await self._run(lambda: self._engine.train(request, beat))

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        """See `TrainerEngine.apply`."""
        return await self._run(lambda: self._engine.apply(request))

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        """See `TrainerEngine.snapshot`."""
        return await self._run(lambda: self._engine.snapshot(request, trio.from_thread.check_cancelled))

    async def cancel(self) -> None:
        """End the running `train` at its next micro-batch; nothing where none runs."""
        self._cancel.set()
        await trio.lowlevel.checkpoint()

    async def stop(self) -> None:
        """Refuse further calls; a running train is cancelled and waited for."""
        self._stopped = True
        self._cancel.set()
        async with self._lock:
            self._engine = TrainerEngine()
