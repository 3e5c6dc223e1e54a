"""T1: what the clock says, also where it is wrong."""

import pytest

from psyche.core.rules.timing import clamp_time, compute_elapsed, is_timed_out
from psyche.core.state.limits import U64_MAX


@pytest.mark.parametrize(("now", "elapsed"), [(0, 0), (9, 0), (10, 0), (11, 1), (U64_MAX, U64_MAX - 10)])
def test_a_clock_that_went_backwards_counts_as_no_time(now: int, elapsed: int) -> None:
    assert compute_elapsed(now, 10) == elapsed


@pytest.mark.parametrize(
    ("now", "clamped"),
    [(-1, 0), (0, 0), (1, 1), (U64_MAX - 1, U64_MAX - 1), (U64_MAX, U64_MAX), (U64_MAX + 1, U64_MAX)],
)
def test_a_time_stands_on_record_from_1970_within_64_bits(now: int, clamped: int) -> None:
    assert clamp_time(now) == clamped


@pytest.mark.parametrize(
    ("now", "duration_s", "fires"), [(9, 0, False), (10, 0, False), (11, 0, True), (11, 1, True), (11, 2, False)]
)
def test_a_time_out_fires_when_its_seconds_are_over_and_never_at_once(now: int, duration_s: int, fires: bool) -> None:
    assert is_timed_out(now, 10, duration_s) is fires
