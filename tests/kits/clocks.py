"""Clocks for tests: no deadline passes because the machine is slow."""

import time
from typing import Final

import trio
from trio.testing import (
    MockClock,
    wait_all_tasks_blocked,
    wait_all_threads_completed,  # pyright: ignore[reportAttributeAccessIssue]  # old stubs
)
from trio.testing import active_thread_count as count_threads  # pyright: ignore[reportAttributeAccessIssue]  # old stubs

LONGEST_STEP_S: Final = 0.01
LONGEST_SLEEP_S: Final = (
    0.25  # more than any cushion of `wait_all_tasks_blocked`, which a shorter sleep would keep from ending
)
BESIDE_THREADS: Final = 0.1  # not 0: the code that ends the thread may wait for the clock
THREAD_POLL_S: Final = 0.001


class SteadyClock(trio.abc.Clock):
    """Counts `rate` seconds per real second in which this program ran; fewer while a worker thread runs.

    For real sockets and processes. Between two readings at most `LONGEST_STEP_S` real seconds count, besides
    the time that trio meant to sleep, and trio reads the clock each time it has polled the sockets. So neither a
    machine that stalls for a minute nor a slow disk lets a deadline pass.
    """

    def __init__(self, rate: float = 1.0, start_s: float = 0.0) -> None:
        self._rate = rate
        self._now = start_s
        self._asleep_s = 0.0  # how long trio means to sleep before the next reading
        self._looked_at = time.perf_counter()

    def start_clock(self) -> None:
        self._looked_at = time.perf_counter()

    def current_time(self) -> float:
        real = time.perf_counter()
        self._now += self._get_rate() * min(real - self._looked_at, self._asleep_s + LONGEST_STEP_S)
        self._asleep_s, self._looked_at = 0.0, real
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Real seconds until trio's next reading; less than to the deadline if that is more than one sleep away."""
        left_s = max(0.0, deadline - self.current_time()) / self._get_rate()
        self._asleep_s = min(left_s, LONGEST_SLEEP_S)
        return self._asleep_s

    def _get_rate(self) -> float:
        return self._rate * (BESIDE_THREADS if count_threads() else 1.0)


def make_autojump_clock() -> MockClock:
    """A clock of trio that jumps over waits, but never while a worker thread runs.

    Trio counts a task that waits for its thread as idle, so its own clock would jump over every deadline while a
    slow disk writes.
    """
    clock = MockClock(autojump_threshold=0)
    jump = clock._autojump  # pyright: ignore[reportAttributeAccessIssue]

    def jump_unless_threads_run() -> None:
        if count_threads():
            time.sleep(THREAD_POLL_S)
        else:
            jump()

    clock._autojump = jump_unless_threads_run  # type: ignore[method-assign]
    return clock


async def wait_until_all_rest() -> None:
    """Wait until all other tasks wait and no worker thread runs; a task that waits for its thread is not at rest."""
    while True:
        await wait_all_threads_completed()
        await wait_all_tasks_blocked()
        if not count_threads():
            return
