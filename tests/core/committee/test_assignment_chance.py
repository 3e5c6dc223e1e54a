"""Chance is even: whoever trains what, over thousands of rounds."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

from psyche.core.committee.assignment import compute_assignments
from psyche.core.state.state import Config, Round


def play(n: int, batch: int, rounds: int) -> Iterator[dict[int, tuple[int, int]]]:
    for number in range(rounds):
        seed = hashlib.sha256(number.to_bytes(8, "little")).digest()
        round_ = Round(
            members=(1 << n) - 1, seed=seed, random_seed=int.from_bytes(seed[:8], "little"), batch_size=batch
        )
        yield compute_assignments(round_, Config())


def is_even(counts: Counter[object], cells: int, expected: float, freedom: float) -> bool:
    """Chi-square of the counts; beyond six of its standard deviations chance is no explanation."""
    missing = cells - len(counts)
    statistic = (sum((count - expected) ** 2 for count in counts.values()) + missing * expected**2) / expected
    return abs(statistic - freedom) < 6 * (2 * freedom) ** 0.5


def test_of_four_members_all_24_orders_occur_and_evenly() -> None:
    rounds = 2_400
    orders = Counter[object](tuple(assigned) for assigned in play(4, 4, rounds))
    assert set(orders) == set(permutations(range(4)))
    assert is_even(orders, 24, rounds / 24, 23)


def test_a_batch_of_32_among_256_members_falls_evenly_on_each_index_and_each_share() -> None:
    rounds = 1_280
    trained, shares = Counter[object](), Counter[object]()
    for assigned in play(256, 32, rounds):
        trained.update(list(assigned))
        shares.update((member, start) for member, (start, _) in assigned.items())
    # of 256 exactly 32 train in each round, which makes a member's count vary by 7/8 of a free one's
    assert is_even(trained, 256, rounds / 8, 255 * 7 / 8)
    assert is_even(shares, 256 * 32, rounds / 256, 255 * 32)


def test_the_larger_shares_of_a_batch_that_does_not_divide_fall_evenly() -> None:
    rounds = 2_000
    larger = Counter[object]()
    for assigned in play(5, 13, rounds):
        larger.update(member for member, (start, end) in assigned.items() if end - start == 2)
    assert is_even(larger, 5, rounds * 3 / 5, 4 * 2 / 5)
