"""V7: who audits whom follows from the seed alone, and falls on everybody alike."""

import hashlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.audits import AuditTask, compute_audits, is_opened, looks_at_whole
from psyche.core.committee.elections import get_verifiers
from psyche.core.committee.seeds import get_random_seed
from psyche.core.committee.shuffle import compute_order
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import Config, Round, RoundFlag


def make_round(members: set[int], seed: int, batch: int = 64) -> Round:
    raw = hashlib.sha256(seed.to_bytes(8, "little")).digest()
    return Round(members=compute_bits(members), seed=raw, random_seed=get_random_seed(raw), batch_size=batch)


AUDITED, ROUND = make_round(set(range(6)), 4), make_round(set(range(6)), 9)
CONFIG = Config(verification_percent=40)


def test_the_audits_of_a_round_are_the_golden_ones() -> None:
    assert (get_verifiers(AUDITED, CONFIG), get_verifiers(ROUND, CONFIG)) == ([2, 5], [2, 0])
    tasks = compute_audits(ROUND, AUDITED, CONFIG)
    assert len(tasks) == 32  # two verifiers, and four trainers with 16 samples each
    assert [tuple(task) for task in tasks[5:9]] == [
        (0, 3, False, 0xAA9E27A6A93234D3), (2, 0, False, 0xBBBC200D9693F947), (0, 5, True, 0x8425D1C4EE35C6D3),
        (2, 1, False, 0x7B317E180E5EC17C),
    ]  # fmt: skip
    key = hashlib.sha256(b"psyche/audit/1" + ROUND.seed).digest()
    assert tasks[7].draw == int.from_bytes(hashlib.sha256(key + bytes([7, 0, 0, 0])).digest()[:8], "little")
    order = [sorted(compute_assignments(AUDITED, CONFIG))[rank] for rank in compute_order(4, key)]
    assert [task.target for task in tasks[:4]] == order


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, 40), min_size=1, max_size=20), st.integers(0, 999), st.integers(0, 300), st.integers(0, 99)
)
def test_nobody_audits_itself_and_only_work_is_audited(members: set[int], seed: int, batch: int, percent: int) -> None:
    config, audited, round_ = Config(verification_percent=percent), make_round(members, seed, batch), None
    round_ = make_round(members, seed + 1)
    shares, verifiers = compute_assignments(audited, config), get_verifiers(round_, config)
    tasks = compute_audits(round_, audited, config)
    for task in tasks:
        assert task.verifier in verifiers
        assert task.verifier != task.target
        assert task.target in (get_verifiers(audited, config) if task.is_report else shares)
        assert task.get_piece(range(3, 7)) in range(3, 7)
        assert task.get_piece(range(0)) is None
    each = max(1, batch // max(1, len(shares)))
    assert max(Counter(task.verifier for task in tasks).values(), default=0) <= each
    if set(shares) - set(verifiers) or len(shares) > 1:
        assert len(tasks) == each * len(verifiers)


def test_all_trainers_come_before_one_comes_twice_and_one_in_eight_is_a_report() -> None:
    tasks = compute_audits(ROUND, AUDITED, CONFIG)
    assert [number for number, task in enumerate(tasks) if task.is_report] == [7, 15, 23, 31]
    counts = Counter(task.target for task in tasks if not task.is_report)
    assert counts.keys() == compute_assignments(AUDITED, CONFIG).keys()
    assert max(counts.values()) - min(counts.values()) <= len(tasks) // 4
    assert len({task.draw for task in tasks}) == len(tasks)


def test_a_doubted_member_is_the_first_target() -> None:
    usual = [task.target for task in compute_audits(ROUND, AUDITED, CONFIG)]
    for member in compute_assignments(AUDITED, CONFIG):
        first = compute_audits(ROUND, AUDITED, CONFIG, [member, 77])
        own_turn = first[0].verifier == member  # who would audit itself leaves its turn to the next
        assert first[0].target == member or own_turn
    assert [task.target for task in compute_audits(ROUND, AUDITED, CONFIG, [77])] == usual


def test_nothing_is_audited_where_nobody_worked_or_verifies() -> None:
    drained = make_round(set(range(6)), 4, 0)
    drained.flags = RoundFlag.DRAIN
    assert compute_audits(ROUND, drained, CONFIG) == []
    assert compute_audits(ROUND, AUDITED, Config()) == []
    alone = make_round({3}, 4), make_round({3}, 5)
    assert compute_audits(*alone, Config(verification_percent=99)) == []


def test_a_drain_round_audits_the_last_round_with_data() -> None:
    drained = make_round(set(range(6)), 9, 0)
    drained.flags = RoundFlag.DRAIN
    assert compute_audits(drained, AUDITED, CONFIG) == compute_audits(ROUND, AUDITED, CONFIG)


def test_where_one_of_two_verifies_it_audits_the_other_alone() -> None:
    both = {0, 1}
    for seed in range(20):
        tasks: list[AuditTask] = compute_audits(make_round(both, seed), make_round(both, seed + 1), CONFIG)
        assert all({task.verifier, task.target} == both for task in tasks)


def test_v11_one_verifier_in_five_looks_at_whole_rounds_and_its_targets_open_their_momenta() -> None:
    seeds = [hashlib.sha256(bytes([number])).digest() for number in range(200)]
    assert 25 < sum(looks_at_whole(seed, 3) for seed in seeds) < 55
    seed = next(seed for seed in seeds if looks_at_whole(seed, 3))
    assert [member for member in range(10) if looks_at_whole(seed, member)] == [3, 8]
    assert [member for member in range(10) if looks_at_whole(bytes([0, 1, 2]), member)] == [4, 9]
    tasks = [AuditTask(3, 0, False, 0), AuditTask(3, 1, True, 0), AuditTask(4, 2, False, 0)]
    assert [member for member in range(4) if is_opened(seed, tasks, member)] == [0]
