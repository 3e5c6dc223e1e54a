"""How long a round waits for its members (A2, A3, A4)."""

import pytest

from psyche.client.engine.records import compute_pace, compute_patience


def test_nobody_awaited_means_no_wait_at_all() -> None:
    assert compute_pace([], {}, 10.0) == 0.0


def test_the_pace_is_the_moment_when_a_quorum_was_there() -> None:
    at = {0: 11.0, 1: 12.0, 2: 17.0, 3: 13.0}
    assert compute_pace([0, 1, 2, 3], at, 10.0) == 3.0, "q(4) = 3: the third fastest"


def test_what_was_there_before_the_round_began_took_no_time() -> None:
    assert compute_pace([0, 1], {0: 3.0, 1: 4.0}, 10.0) == 0.0


def test_the_pace_is_unknown_before_a_quorum_is_there() -> None:
    assert compute_pace([0, 1, 2, 3], {0: 11.0, 1: 12.0}, 10.0) is None


@pytest.mark.parametrize(("pace", "patience"), [(1.0, 3.0), (10.0, 15.0)])
def test_a_straggler_has_one_and_a_half_times_the_pace_and_at_least_two_seconds(pace: float, patience: float) -> None:
    assert compute_patience((pace, 0.5), 150) == patience


def test_a_factor_of_zero_waits_for_all() -> None:
    assert compute_patience((1.0, 1.0), 0) is None


def test_patience_is_unknown_while_a_pace_is() -> None:
    assert compute_patience((1.0, None), 150) is None
