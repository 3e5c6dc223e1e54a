"""The clock of the tests."""

import time

import trio
from trio.testing import MockClock


async def test_the_clock_does_not_jump_over_a_deadline_while_a_thread_works(autojump_clock: MockClock) -> None:
    del autojump_clock
    with trio.move_on_after(3_000) as scope:
        await trio.to_thread.run_sync(time.sleep, 0.05)
    assert not scope.cancelled_caught
    assert trio.current_time() < 3_000
