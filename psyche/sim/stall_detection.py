"""Ends a simulated run that no longer makes progress.

A run can stall in two ways: no step is taken for a long time, or epoch after epoch is given up and none
certifies anything. Neither ends by itself, while its user waits for a result.
"""

from collections.abc import Collection, Sequence
from typing import Final, Protocol

import trio

from psyche.core.state.state import RunState
from psyche.sim.faults import Fault
from psyche.sim.invariants.shadow import Shadow
from psyche.telemetry.text import format_number, format_seconds

LOOK_S: Final = 5.0
GIVEN_UP: Final = 3  # epochs in a row that certified nothing
FIRST_STEP: Final = 1  # on record from the start, without any work


class Progressing(Protocol):
    """What the detector needs of a world: the record, the running faults, and a way to end the run."""

    @property
    def shadow(self) -> Shadow: ...
    @property
    def under_way(self) -> Sequence[Fault]: ...
    def give_up(self, expected: str, found: str) -> None: ...


class StallDetector:
    """Watches a world and ends it when it makes no more progress.

    Args:
        world: the watched world.
        patience_s: the longest time without a step.
        since_s: when the watch begins, such as when all clients have joined.
        planned: faults to wait for if they have an end; all other faults are normal operation.
    """

    def __init__(
        self, world: Progressing, *, patience_s: float, since_s: float = 0.0, planned: Collection[Fault] = ()
    ) -> None:
        self.obstacle = ""
        self.given_up = 0  # epochs in a row
        self._world = world
        self._planned = planned
        self._patience_s = patience_s
        self._place = (0, 0)  # epoch, step
        self._since_s = since_s
        self._certified = FIRST_STEP
        self._next_epoch = 0  # the one after the last epoch that certified weights

    async def watch(self) -> None:
        while not self.obstacle:
            await trio.sleep(LOOK_S)
            self._look(trio.current_time())
        self._world.give_up("headway", self.obstacle)

    def _look(self, now: float) -> None:
        state = self._world.shadow.state
        place = (state.progress.epoch, state.progress.step)
        if place != self._place:
            self._place, self._since_s = place, max(now, self._since_s)
        if state.certified.step > self._certified:
            self._next_epoch = state.certified.epoch + 1
        self._certified = max(FIRST_STEP, state.certified.step)
        if self._is_disturbed():
            self._next_epoch, self._since_s = state.progress.epoch, max(now, self._since_s)
        self.given_up = max(0, state.progress.epoch - self._next_epoch)
        if state.run_state is RunState.FINISHED:
            return
        if self.given_up >= GIVEN_UP:
            self.obstacle = f"{format_number(self.given_up, 'epoch')} in a row came to nothing"
        elif now - self._since_s > self._patience_s:
            self.obstacle = f"no step was completed for {format_seconds(now - self._since_s)}"

    def _is_disturbed(self) -> bool:
        return any(fault.for_s and fault in self._planned for fault in self._world.under_way)
