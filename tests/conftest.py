"""What all tests share: how hypothesis searches and says what it found, and a clock that waits for threads."""

import os
import signal
import threading
import time

import pytest
from hypothesis import HealthCheck, settings
from trio.testing import MockClock, active_thread_count

# No deadlines: a slow machine is no failing test. A failing example prints the blob that repeats it.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell that starts this in the background without job control has it ignore Ctrl-C, and all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

THREAD_POLL_S = 0.001


@pytest.fixture
def autojump_clock() -> MockClock:
    """Like pytest-trio's clock, but it does not jump while a worker thread runs.

    Trio counts a task that waits for its thread as idle. The clock would jump over every deadline while a slow
    disk writes.
    """
    clock = MockClock(autojump_threshold=0)
    jump = clock._autojump

    def jump_unless_threads_run() -> None:
        if active_thread_count():
            time.sleep(THREAD_POLL_S)
        else:
            jump()

    clock._autojump = jump_unless_threads_run  # type: ignore[method-assign]
    return clock
