"""Ends a simulated run that gains nothing any more.

A run may stand still in two ways: no step is gained for a long while, or epoch after epoch is given up, for none
certifies anything. Neither ends by itself, and whoever plays it waits for an answer.
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
FIRST_STEP: Final = 1  # is on record without any work


class Progressing(Protocol):
    """What is looked at: the record, what is wrong now, and a way to end it."""

    @property
    def shadow(self) -> Shadow:
        """The record, as the journal tells it."""
        ...

    @property
    def under_way(self) -> Sequence[Fault]:
        """The faults that have begun and are not over."""
        ...

    def give_up(self, expected: str, found: str) -> None:
        """End the run."""
        ...


class StallDetector:
    """Looks at a world from time to time, and ends it where nothing comes of it any more.

    Args:
        world: what is looked at.
        patience_s: how long no step may be gained.
        since_s: from when on that counts, as when all have joined.
        planned: faults that are waited for where they have an end; others are the run's everyday.
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
        self._next_epoch = 0  # after the last one that came to something

    async def watch(self) -> None:
        """Until the run stands still; who starts it ends it."""
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
            self.obstacle = f"no step was gained for {format_seconds(now - self._since_s)}"

    def _is_disturbed(self) -> bool:
        return any(fault.for_s and fault in self._planned for fault in self._world.under_way)
