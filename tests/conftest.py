"""What all tests share: how hypothesis searches and says what it found, and a clock that waits for threads."""

import os
import signal
import threading

import pytest
from hypothesis import HealthCheck, settings
from kits.clocks import make_autojump_clock
from trio.testing import MockClock

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


@pytest.fixture
def autojump_clock() -> MockClock:
    """Instead of pytest-trio's, which jumps while worker threads run."""
    return make_autojump_clock()
