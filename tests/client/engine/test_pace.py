"""How long a round waits for its members (A2, A3, A4)."""

import pytest

from psyche.client.engine.records import compute_pace, compute_patience


@pytest.mark.parametrize(
    ("awaited", "at", "pace"),
    [
        ([], {}, 0.0),  # nobody awaited means no wait at all
        ([0, 1, 2, 3], {0: 11.0, 1: 12.0, 2: 17.0, 3: 13.0}, 3.0),  # q(4) = 3: the third fastest
        ([0, 1], {0: 3.0, 1: 4.0}, 0.0),  # there before the round began
        ([0, 1, 2, 3], {0: 11.0, 1: 12.0}, None),  # no quorum yet
    ],
)
def test_the_pace_is_the_moment_when_a_quorum_was_there(
    awaited: list[int], at: dict[int, float], pace: float | None
) -> None:
    assert compute_pace(awaited, at, 10.0) == pace


@pytest.mark.parametrize(
    ("paces", "factor", "patience"),
    [
        ((1.0, 0.5), 150, 3.0),  # at least two seconds more
        ((10.0, 0.5), 150, 15.0),
        ((1.0, 1.0), 0, None),  # waits for all
        ((1.0, None), 150, None),  # unknown while a pace is
    ],
)
def test_a_straggler_has_one_and_a_half_times_the_pace(
    paces: tuple[float | None, ...], factor: int, patience: float | None
) -> None:
    assert compute_patience(paces, factor) == patience
