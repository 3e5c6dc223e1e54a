"""The clock of tests over real sockets."""

import pytest
from kits.clocks import SteadyClock
from live_kit import RATE


@pytest.fixture
def clock() -> SteadyClock:
    """pytest-trio runs a test on a clock among its fixtures: time flies, sockets and threads stay real."""
    return SteadyClock(RATE)
