from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.committee.results import compute_leaf, compute_merkle_root, compute_results_root

PIZZA = b"my very eager mother just served us nine pizzas make prime".split()
C = {member: bytes([member]) * 32 for member in (1, 4, 9)}


@pytest.mark.parametrize(
    ("items", "golden"),
    [
        ([b"test"], "dbebd10e61bc8c28591273feafbbef95d544f874693301d8f7f8e54c6e30058e"),
        (PIZZA, "b40c847546fdceea166f927fc46c5ca33c3638236a36275c1346d3dffb84e1bc"),
        ([bytes([i]) * 32 for i in range(3)], "9aa08d413285ecda667944ba9446d77c1f1712ecf946bfcf74453c731a38e7b7"),
    ],
)
def test_merkle_roots_are_the_golden_ones(items: list[bytes], golden: str) -> None:
    assert compute_merkle_root([compute_leaf(item) for item in items]).hex() == golden


def test_the_root_of_a_list_follows_the_formula_of_w2() -> None:
    held = 1 << 1 | 1 << 2 | 1 << 9  # 2 owed nothing, 4 is not held
    leaves = [sha256(b"\0" + m.to_bytes(2, "little") + C[m]).digest() for m in (1, 9)]
    tree = sha256(b"\1" + leaves[0] + leaves[1]).digest()
    expected = sha256(
        b"psyche/results/1" + b"\x03\x00" + b"\x08\x00\x00\x00" + held.to_bytes(32, "little") + tree
    ).digest()
    assert compute_results_root(3, 8, held, C) == expected


def test_held_without_payloads_has_a_root_of_its_own() -> None:
    held = 0b100
    expected = sha256(b"psyche/results/1" + bytes(6) + held.to_bytes(32, "little") + bytes(32)).digest()
    assert compute_results_root(0, 0, held, {}) == expected


def test_nothing_held_has_the_zero_root() -> None:
    assert compute_results_root(3, 8, 0, C) == bytes(32)


@given(st.sets(st.sampled_from([1, 2, 4, 9])), st.integers(0, 9), st.integers(0, 9))
def test_the_root_depends_on_nothing_but_what_is_held(held: set[int], epoch: int, height: int) -> None:
    bits = sum(1 << m for m in held)
    only = {m: c for m, c in C.items() if m in held}
    backwards = dict(reversed(C.items()))
    root = compute_results_root(epoch, height, bits, C)
    assert (
        root == compute_results_root(epoch, height, bits, only) == compute_results_root(epoch, height, bits, backwards)
    )
    if held:
        assert root != compute_results_root(epoch, height + 1, bits, C)
        assert root != compute_results_root(epoch + 1, height, bits, C)
