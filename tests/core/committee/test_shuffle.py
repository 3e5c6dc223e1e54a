import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.core.committee.shuffle import compute_order, permute
from psyche.core.state.errors import InvalidCommitteeSelection


def test_swap_or_not_gives_the_golden_permutation() -> None:
    assert [permute(i, 10, bytes(32)) for i in range(10)] == [9, 7, 4, 1, 8, 0, 5, 6, 3, 2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 600), st.binary(min_size=32, max_size=32))
def test_the_order_of_all_is_the_inverse_of_single_positions(n: int, seed: bytes) -> None:
    order = compute_order(n, seed)
    assert sorted(order) == list(range(n))
    assert all(permute(order[p], n, seed) == p for p in range(0, n, 1 + n // 8))


@pytest.mark.parametrize("n", [255, 256, 257, 512, 513])
def test_the_order_of_all_at_the_ends_of_a_hash_is_that_of_single_positions(n: int) -> None:
    seed = bytes(range(32))
    order = compute_order(n, seed)
    assert all(permute(order[p], n, seed) == p for p in (0, 1, n // 2, n - 2, n - 1))


@pytest.mark.parametrize(("index", "n"), [(5, 5), (-1, 5), (0, 0)])
def test_an_index_outside_the_permutation_is_refused(index: int, n: int) -> None:
    with pytest.raises(InvalidCommitteeSelection, match=f"index {index} is not below {n}"):
        permute(index, n, bytes(32))


def test_the_hash_of_a_number_is_of_its_little_endian_bytes() -> None:
    digest = hashlib.sha256((12345).to_bytes(8, "little")).hexdigest()
    assert digest == "e1543551249113046932741cc28f36b4bbcc542233eb5094874072d3167f160a"
