"""The shuffle by formula is a permutation, the same everywhere, and not the identity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.data.permutation import MAX_ITEMS, Permutation

SEED = bytes(range(32))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3_000), st.binary(max_size=40), st.integers(0, 1 << 40))
def test_every_item_is_hit_exactly_once(n: int, seed: bytes, pass_number: int) -> None:
    found = Permutation(n, seed, pass_number).permute(np.arange(n))
    assert sorted(found.tolist()) == list(range(n))


def test_the_order_is_the_same_on_every_machine() -> None:
    assert Permutation(10, SEED, 0).permute(np.arange(10)).tolist() == [3, 8, 1, 6, 0, 2, 4, 7, 5, 9]
    assert Permutation(10**9, SEED, 7).permute(np.array([0, 1, 10**9 - 1])).tolist() == [
        620164207,
        228642948,
        773496315,
    ]


def test_a_billion_and_the_largest_number_of_items_cost_no_memory() -> None:
    for n in (10**9, MAX_ITEMS):
        indexes = np.array([0, n // 2, n - 1], dtype=np.uint64)
        found = Permutation(n, SEED, 0).permute(indexes)
        assert len(set(found.tolist())) == 3
        assert all(0 <= i < n for i in found.tolist())


def test_each_item_lands_everywhere_about_equally_often() -> None:
    n, seeds = 7, 1_500
    landed = np.zeros((n, n))
    for i in range(seeds):
        for item, place in enumerate(Permutation(n, i.to_bytes(4, "little"), 0).permute(np.arange(n)).tolist()):
            landed[item, place] += 1
    expected = seeds / n
    assert ((landed - expected) ** 2 / expected).sum() < 90  # chi-square, 36 degrees of freedom: 90 is beyond 1e-6


@pytest.mark.parametrize("n", [0, -1, MAX_ITEMS + 1])
def test_impossible_numbers_of_items_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match="must be 1 to"):
        Permutation(n, SEED, 0)
