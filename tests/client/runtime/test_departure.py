"""A client leaves within its grace, and serves the final weights as long as it was told to (F26, P8)."""

from dataclasses import dataclass, field

import pytest
import trio
from kits.log import Log
from trio.testing import MockClock

from psyche.client.engine.actions import Exit
from psyche.client.runtime.departure import FAREWELL_S, LAST_WRITES_S, WITHDRAW_S, Departure
from psyche.telemetry import types
from psyche.telemetry.types import LeaveCause


@dataclass
class Leaving:
    writes: trio.Event = field(default_factory=trio.Event)  # nothing is left to write
    log: Log = field(default_factory=Log)
    code: int | None = None
    left_at: float | None = None

    def __post_init__(self) -> None:
        self.departure = Departure(5.0, self.writes.wait, self.log)

    async def run(self) -> None:
        start = trio.current_time()
        self.code = await self.departure.wait()
        self.left_at = trio.current_time() - start

    async def leave(self, *exits: tuple[float, Exit]) -> None:
        """Each exit after so many seconds, until the client has left."""

        async def exit_after(seconds: float, action: Exit) -> None:
            await trio.sleep(seconds)
            await self.departure.leave(action)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            for seconds, action in exits:
                nursery.start_soon(exit_after, seconds, action)


async def test_who_has_nothing_to_withdraw_says_farewell_and_leaves(autojump_clock: MockClock) -> None:
    leaving = Leaving()
    await leaving.leave((0.0, Exit(3, "banned", LeaveCause.BANNED)))
    assert (leaving.code, leaving.left_at) == (3, pytest.approx(FAREWELL_S))
    assert leaving.log.kinds == [types.ClientEnded]


@pytest.mark.parametrize(("answered_s", "left_s"), [(1.0, 1.0), (1_000.0, FAREWELL_S + WITHDRAW_S)])
async def test_the_answer_to_a_withdrawal_is_waited_for_but_not_for_long(
    autojump_clock: MockClock, answered_s: float, left_s: float
) -> None:
    """F26: a server that does not answer keeps nobody from leaving."""
    leaving = Leaving()
    leaving.departure.note_withdrawing()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leaving.leave, (0.0, Exit(0, "stopped", LeaveCause.STOPPED)))
        with trio.move_on_after(answered_s):
            while leaving.code is None:
                await trio.sleep(0.01)
        leaving.departure.note_withdrawn()
    assert (leaving.code, leaving.left_at) == (0, pytest.approx(left_s, abs=0.02))
    assert leaving.departure.is_stopped


async def test_the_final_weights_are_served_and_written_to_the_end(autojump_clock: MockClock) -> None:
    """P8."""
    leaving = Leaving()
    await leaving.leave((0.0, Exit(0, "the run is finished", LeaveCause.FINISHED, serve_s=30.0)))
    assert leaving.left_at == pytest.approx(30.0 + LAST_WRITES_S), "a write that hangs has a limit"
    assert leaving.log.kinds == [types.Serving, types.ClientEnded]
    quick = Leaving()
    quick.writes.set()
    await quick.leave((0.0, Exit(0, "the run is finished", LeaveCause.FINISHED, serve_s=30.0)))
    assert quick.left_at == pytest.approx(30.0)


@pytest.mark.parametrize("stopped_s", [1.0, 31.0])
async def test_stopping_while_serving_or_writing_ends_at_once_and_well(
    autojump_clock: MockClock, stopped_s: float
) -> None:
    """F26, P8: code 0, for the run is finished."""
    leaving = Leaving()
    finished, stopped = (
        Exit(0, "the run is finished", LeaveCause.FINISHED, serve_s=30.0),
        Exit(1, "stopped by SIGINT", LeaveCause.STOPPED),
    )
    await leaving.leave((0.0, finished), (stopped_s, stopped))
    assert (leaving.code, leaving.left_at) == (0, pytest.approx(stopped_s))
    assert not leaving.departure.is_stopped
