import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import get_roles
from psyche.core.committee.shuffle import compute_order
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import Config, Role, Round, RoundFlag


def build_seed(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def make_round(n: int, seed: int, index: int, batch: int, **more: int) -> Round:
    round_ = Round(members=(1 << n) - 1, seed=build_seed(seed), data_index=index, batch_size=batch)
    for name, value in more.items():
        setattr(round_, name, value)
    return round_


@pytest.mark.parametrize(
    ("round_", "golden"),
    [
        (
            make_round(5, 12345, 100, 13),
            {0: (100, 102), 3: (103, 105), 2: (106, 108), 1: (109, 110), 4: (111, 112)},
        ),
        (make_round(3, 42, 0, 8), {0: (0, 2), 1: (3, 5), 2: (6, 7)}),
        (make_round(4, 7, 1000, 2), {3: (1000, 1000), 1: (1001, 1001)}),
    ],
)
def test_assignments_are_the_golden_ones(round_: Round, golden: dict[int, tuple[int, int]]) -> None:
    assert compute_assignments(round_, Config()) == golden
    assert list(compute_assignments(round_, Config())) == list(golden)


def test_the_order_is_that_of_the_elections_under_a_key_of_its_own() -> None:
    round_ = make_round(9, 5, 0, 9)
    key = hashlib.sha256(b"psyche/assignment/1" + round_.seed).digest()
    assert tuple(compute_assignments(round_, Config())) == compute_order(9, key)


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.integers(0, 255), max_size=40),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 1 << 40),
    st.integers(0, 500),
    st.integers(0, 100),
)
def test_every_sample_goes_to_exactly_one_trainer(
    members: set[int], seed: bytes, index: int, batch: int, percent: int
) -> None:
    round_ = Round(
        members=compute_bits(members),
        seed=seed,
        data_index=index,
        batch_size=batch,
    )
    config = Config(verification_percent=percent)
    assignments = compute_assignments(round_, config)
    roles = get_roles(round_, config)
    trainers = [m for m, role in roles.items() if role is Role.TRAINER]
    assert set(assignments) <= set(trainers)
    samples = [s for start, end in assignments.values() for s in range(start, end + 1)]
    assert samples == (list(range(index, index + batch)) if trainers else [])
    sizes = {end - start + 1 for start, end in assignments.values()}
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_drain_round_has_no_data() -> None:
    assert compute_assignments(make_round(5, 1, 0, 13, flags=RoundFlag.DRAIN), Config()) == {}


def test_one_member_trains_where_all_others_verify() -> None:
    assert list(compute_assignments(make_round(5, 1, 0, 13), Config(verification_percent=99)).values()) == [(0, 12)]


def test_a_round_without_members_assigns_nothing() -> None:
    assert compute_assignments(make_round(0, 1, 0, 13), Config()) == {}
