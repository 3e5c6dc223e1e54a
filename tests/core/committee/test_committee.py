import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.core.committee.elections import (
    COMMITTEE_SALT,
    WITNESS_SALT,
    compute_election_seed,
    compute_liar_bound,
    compute_quorum,
    compute_uploads,
    compute_verifiers_expected,
    compute_witnesses_expected,
    get_roles,
    get_verifiers,
    get_witnesses,
    is_witness,
    order_uploaders,
)
from psyche.core.committee.shuffle import permute
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.state import Config, Role, Round


def all_of(n: int) -> int:
    return (1 << n) - 1


def positions(seed: int, salt: bytes, n: int) -> list[int]:
    return [permute(i, n, compute_election_seed(seed, salt)) for i in range(n)]


@pytest.mark.parametrize(
    ("seed", "salt", "n", "part", "golden"),
    [
        (12345, COMMITTEE_SALT, 10, slice(None), [1, 7, 2, 9, 5, 0, 8, 3, 4, 6]),
        (12345, WITNESS_SALT, 10, slice(None), [7, 4, 9, 2, 6, 1, 0, 3, 5, 8]),
        (0, COMMITTEE_SALT, 5, slice(None), [0, 1, 3, 2, 4]),
        (0, WITNESS_SALT, 5, slice(None), [2, 3, 1, 0, 4]),
        (12345, COMMITTEE_SALT, 100, slice(8), [83, 58, 32, 29, 76, 82, 21, 88]),
        (12345, WITNESS_SALT, 100, slice(8), [58, 86, 21, 7, 69, 31, 63, 29]),
        (99, WITNESS_SALT, 300, slice(-3, None), [205, 239, 51]),
    ],
)
def test_positions_are_the_golden_ones(seed: int, salt: bytes, n: int, part: slice, golden: list[int]) -> None:
    assert positions(seed, salt, n)[part] == golden


def test_the_elected_witnesses_are_the_golden_ones() -> None:
    round_ = Round(electors=all_of(100), random_seed=12345, witnesses_expected=20)
    golden = [3, 8, 10, 16, 21, 22, 31, 33, 43, 51, 54, 56, 67, 73, 77, 80, 92, 95, 96, 99]
    assert sorted(get_witnesses(round_)) == golden
    assert [m for m in range(100) if is_witness(round_, m)] == golden
    assert not is_witness(round_, 100)


def test_witnesses_come_in_order_of_position() -> None:
    round_ = Round(electors=all_of(10), random_seed=12345, witnesses_expected=10)
    assert get_witnesses(round_) == [6, 5, 3, 7, 1, 8, 4, 0, 9, 2]


@pytest.mark.parametrize(
    ("n", "q"),
    [(0, 1), (1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 5), (7, 5), (8, 6), (16, 11), (32, 22)],
)
def test_the_quorum_is_that_of_the_table(n: int, q: int) -> None:
    assert compute_quorum(n) == q


@pytest.mark.parametrize(("n", "f"), [(0, 0), (1, 0), (3, 0), (4, 1), (6, 1), (7, 2), (32, 10)])
def test_less_than_a_third_of_the_witnesses_may_lie(n: int, f: int) -> None:
    assert compute_liar_bound(n) == f


def test_two_sets_never_both_win() -> None:
    assert all(2 * compute_quorum(n) > n for n in range(33))


@pytest.mark.parametrize(
    ("witness_nodes", "members", "n"), [(0, 5, 5), (0, 256, 32), (16, 256, 16), (16, 3, 3), (40, 256, 32), (3, 0, 0)]
)
def test_witnesses_expected_is_the_least_of_setting_members_and_32(witness_nodes: int, members: int, n: int) -> None:
    assert compute_witnesses_expected(witness_nodes, members) == n


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 255), min_size=1, max_size=40), st.integers(0, (1 << 64) - 1), st.integers(1, 32))
def test_elections_run_over_ranks(members: set[int], seed: int, expected: int) -> None:
    """The gaps that departed members leave change nothing but the names of the elected."""
    ranks = sorted(members)
    common = {"random_seed": seed, "witnesses_expected": expected}
    bits, dense_bits = compute_bits(members), all_of(len(ranks))
    gapped = Round(members=bits, electors=bits, **common)
    dense = Round(members=dense_bits, electors=dense_bits, **common)
    config = Config(verification_percent=30)
    assert get_witnesses(gapped) == [ranks[rank] for rank in get_witnesses(dense)]
    assert get_roles(gapped, config) == {ranks[rank]: role for rank, role in get_roles(dense, config).items()}


def test_m10_witnesses_are_elected_among_electors_and_roles_among_members() -> None:
    electors = compute_bits([1, 4, 7, 9])
    round_ = Round(members=all_of(10), electors=electors, random_seed=12345, witnesses_expected=3)
    dense = Round(members=all_of(4), electors=all_of(4), random_seed=12345, witnesses_expected=3)
    assert get_witnesses(round_) == [[1, 4, 7, 9][rank] for rank in get_witnesses(dense)]
    assert not is_witness(round_, 0)
    assert list(get_roles(round_, Config(verification_percent=30))) == list(range(10))


def test_without_verification_everybody_trains() -> None:
    round_ = Round(members=0b1101, random_seed=3)
    assert get_roles(round_, Config()) == {0: Role.TRAINER, 2: Role.TRAINER, 3: Role.TRAINER}


def test_v7_the_first_by_position_verify_and_the_others_train() -> None:
    round_ = Round(members=all_of(10), random_seed=12345)
    config = Config(verification_percent=50)
    golden = [1, 7, 2, 9, 5, 0, 8, 3, 4, 6]  # positions; (10 * 50 + 45) div 100 = 5 verifiers
    assert get_verifiers(round_, config) == [golden.index(position) for position in range(5)]
    roles = get_roles(round_, config)
    assert [roles[m] for m in range(10)] == [Role.VERIFIER if p < 5 else Role.TRAINER for p in golden]
    assert list(roles) == list(range(10))


@pytest.mark.parametrize(
    ("members", "percent", "seed", "verifiers"),
    [
        (101, 0, 99, 0), (101, 30, 69, 30), (101, 30, 170, 31), (6, 5, 69, 0), (6, 5, 70, 1), (1, 99, 99, 0),
        (2, 99, 1, 1), (3, 99, 99, 2), (256, 99, 0, 32), (0, 99, 99, 0),
    ],
)  # fmt: skip
def test_v7_the_seed_rounds_the_share_of_verifiers_and_somebody_always_trains(
    members: int, percent: int, seed: int, verifiers: int
) -> None:
    round_ = Round(members=all_of(members), random_seed=seed)
    assert compute_verifiers_expected(round_, Config(verification_percent=percent)) == verifiers


def test_v7_the_share_is_right_on_average() -> None:
    config = Config(verification_percent=5)
    assert sum(compute_verifiers_expected(Round(members=all_of(6), random_seed=u), config) for u in range(100)) == 30


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 256), st.integers(0, 255))
def test_elections_never_fail_whatever_the_numbers(n: int, percent: int) -> None:
    round_ = Round(members=all_of(n), electors=all_of(n), random_seed=9)
    round_.witnesses_expected = 300
    roles = list(get_roles(round_, Config(verification_percent=percent)).values())
    assert roles.count(Role.VERIFIER) == max(0, min((n * percent + 9) // 100, 32, n - 1))
    assert sorted(get_witnesses(round_)) == get_members(round_.members)


def test_s10_the_turns_of_uploaders_follow_from_the_weights_whoever_asks() -> None:
    keys = [bytes([number]) * 32 for number in range(9)]
    orders = [tuple(order_uploaders(reversed(keys), bytes([digest]) * 32)) for digest in range(20)]
    assert orders == [tuple(order_uploaders(keys, bytes([digest]) * 32)) for digest in range(20)]
    assert all(sorted(order) == keys for order in orders)
    assert len({order[0] for order in orders}) > 4
    assert order_uploaders([], bytes(32)) == []


def test_s10_a_third_of_those_that_can_upload_but_at_least_one_and_at_most_16() -> None:
    assert [compute_uploads(able) for able in (1, 2, 3, 5, 6, 47, 48, 51, 256)] == [1, 1, 1, 1, 2, 15, 16, 16, 16]
