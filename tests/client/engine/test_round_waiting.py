"""Whom a round waits for, and when a member says that it is done (A1 to A3, W6)."""

import dataclasses

import pytest
from kits.bench import Bench, build_bench

from psyche.client.engine import actions as act
from psyche.client.engine.records import KnownResult, PayloadStatus, compute_pace, compute_patience
from psyche.client.engine.witness_report import (
    compute_report,
    compute_standing,
    find_followed,
    get_announced,
    get_awaited,
)
from psyche.core.state.bits import compute_bits, get_members
from psyche.core.state.gossip import Finished, Leave, Result
from psyche.core.state.messages import HealthCheck, WitnessMessage
from psyche.core.state.state import ClientState, RunState, WitnessFlag


@pytest.fixture
def bench() -> Bench:
    return build_bench(4).start()


def get_finished(bench: Bench) -> list[tuple[int, Finished]]:
    return [(m.height, m.body) for m in bench.get_said(Finished)]


def hold_back(bench: Bench, member: int, height: int | None = None) -> KnownResult:
    """The payload of a result of this member is still on its way."""
    known = bench.get_known(member, height)[0]
    known.status = PayloadStatus.FETCHING
    return known


# --- A1: who is awaited


Counts = dict[int, dict[str, object]]  # member -> what the record counts of it
AWAITED: dict[str, tuple[Counts, set[int], list[int]]] = {  # (counts, who was heard, who is awaited) of five electors
    "all with eight rounds running, as founding members have": ({}, set(), [0, 1, 2, 3, 4]),
    "not those with seven": ({3: {"good_streak": 7}}, set(), [0, 1, 2, 4]),
    "below half, all without an absence": (
        {0: {"good_streak": 0}, 1: {"good_streak": 0, "missed": 1}, 2: {"good_streak": 0}}, set(), [0, 2, 3, 4],
    ),
    "from half on, the steady": (
        {1: {"good_streak": 0, "missed": 1}, 2: {"good_streak": 0}}, set(), [0, 3, 4],
    ),
    "an elector that was absent, where it is heard": ({3: {"good_streak": 0, "missed": 1}}, {3}, [0, 1, 2, 3, 4]),
    "and not where it is not": ({3: {"good_streak": 0, "missed": 1}}, set(), [0, 1, 2, 4]),
    "a glitch is common whoever has spoken": (
        {m: {"good_streak": 1, "missed": int(m == 1)} for m in range(5)}, {2, 3}, [0, 2, 3, 4],
    ),
    "nobody that withdrew or was dropped": (
        {2: {"state": ClientState.WITHDRAWN}, 3: {"state": ClientState.DROPPED}}, {2, 3}, [0, 1, 4],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("counts", "heard", "awaited"), AWAITED.values(), ids=AWAITED)
def test_electors_are_awaited_by_what_the_record_counts_of_them(
    counts: Counts, heard: set[int], awaited: list[int]
) -> None:
    """A1, M4: a common glitch must not empty the list, and one glitch must not make a slow elector late for good."""
    bench = build_bench(5).start()
    state, record = bench.engine.state, bench.get_record()
    for member, changes in counts.items():
        for name, value in changes.items():
            setattr(state.clients[member], name, value)
    for member in heard:
        bench.hear(bench.build_ready(member, b"\1" * 32))
    assert get_awaited(state, record) == awaited


def test_nobody_waits_for_who_says_that_it_leaves() -> None:
    """A1."""
    bench = build_bench(5).start()
    bench.hear(bench.build_ready(3, b"\1" * 32))
    bench.hear(bench.sign(3, Leave()))
    assert get_awaited(bench.engine.state, bench.get_record()) == [0, 1, 2, 4]


def start_with_newcomers() -> Bench:
    """Members 3 and 4 are on probation."""
    bench = build_bench(5).start()
    bench.get_record().electors = 0b00111
    return bench


def test_newcomers_are_awaited_like_electors_however_few_of_these_there_are() -> None:
    """A1: the first round that counts one as absent has waited for it."""
    bench = start_with_newcomers()
    state, record = bench.engine.state, bench.get_record()
    state.clients[3].good_streak = 0
    assert get_awaited(state, record) == [0, 1, 2, 3, 4]
    record.heard = 0
    state.clients[0].good_streak = state.clients[1].good_streak = 0
    state.clients[1].missed = 1
    assert get_awaited(state, record) == [0, 2, 3, 4], "one of three electors is steady: fewer than half"
    state.clients[4].state = ClientState.DROPPED
    assert get_awaited(state, record) == [0, 2, 3]


def test_a_newcomer_that_was_absent_is_awaited_only_where_it_is_heard() -> None:
    """A1: strangers that do nothing keep one round of an epoch waiting, and no second one."""
    bench = start_with_newcomers()
    state, record = bench.engine.state, bench.get_record()
    state.clients[3].missed = 1
    assert get_awaited(state, record) == [0, 1, 2, 4]
    bench.hear(bench.build_ready(3, b"\1" * 32))
    assert get_awaited(state, record) == [0, 1, 2, 3, 4]


def test_a_newcomer_that_was_late_twice_is_not_awaited_before_it_has_delivered() -> None:
    """A1: who talks and delivers nothing keeps rounds waiting until the record has said so twice."""
    bench = start_with_newcomers()
    state, record = bench.engine.state, bench.get_record()
    bench.hear(bench.build_ready(4, b"\1" * 32))
    state.clients[4].late = 1
    assert get_awaited(state, record) == [0, 1, 2, 3, 4], "its first batch may take long"
    state.clients[4].late = 2
    assert get_awaited(state, record) == [0, 1, 2, 3]
    state.clients[1].late = 2
    assert get_awaited(state, record) == [0, 1, 2, 3], "lateness does not end the waiting for an elector"
    state.clients[4].late = 0
    assert get_awaited(state, record) == [0, 1, 2, 3, 4], "a good round clears it (H2)"


# --- A2: pace


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


def test_the_pace_is_that_of_the_awaited_electors_so_silent_newcomers_cost_little(
    bench: Bench,
) -> None:
    """A2: of four, q would be three, and two that say nothing would hold the round up to its limit."""
    state, record = bench.engine.state, bench.get_record()
    record.electors = 0b0011
    bench.wait(3.0)
    bench.train()
    bench.hear(bench.build_finished(1))
    waiting = compute_standing(state, record, None)
    assert (waiting.missing, waiting.patience_s) == (0b1100, 5.0), "t_q + 2 s"
    record.electors = 0b1111
    assert compute_standing(state, record, None).patience_s is None


def test_the_pace_of_payloads_is_that_of_the_awaited_electors_too(bench: Bench) -> None:
    """A2."""
    bench.play()
    for member in (2, 3):
        hold_back(bench, member)
    bench.close()
    record, attested = bench.get_record(1), bench.get_record(0)
    record.electors = 0b0011
    waiting = compute_standing(bench.engine.state, record, attested)
    assert waiting.missing & 0b1100 == 0b1100, "newcomers' payloads are waited for"
    assert waiting.fetch_patience_s == 2.0, "but not to know the pace"


def test_payloads_are_due_of_whom_announced_them_or_whom_a_third_has_seen(bench: Bench) -> None:
    """A2, R5: who announced nothing owes nothing more."""
    bench.hear(bench.build_result(1))
    record = bench.get_record()
    assert get_announced(record) == 0b10
    bench.hear(bench.build_finished(1, seen=1 << 3))
    assert get_announced(record) == 0b10, "one of four is not more than a third"
    bench.hear(bench.build_finished(2, seen=1 << 3))
    assert get_announced(record) == 0b1010


def announce_late(bench: Bench, member: int) -> None:
    """The result of round 0 comes when round 1 has begun."""
    assert bench.state.current.height == 1
    bench.deliver(member, height=0)


def test_a_commitment_that_comes_after_the_next_round_began_counts_only_if_a_third_has_seen_it(bench: Bench) -> None:
    """R5: else a cheat could wait until it knows who is audited."""
    record = bench.get_record()
    record.has_deadline = True
    bench.deliver(1)
    bench.train()
    bench.close(held=0, commitments={})
    announce_late(bench, 2)
    assert get_members(record.compute_held()) == [0, 1]
    assert get_members(compute_report(record).held) == [0, 1]
    for witness in (1, 3):
        bench.hear(bench.build_finished(witness, height=0, seen=1 << 2))
    assert get_members(record.compute_held()) == [0, 1, 2]


def test_without_verification_a_late_commitment_is_held_like_any_other(bench: Bench) -> None:
    """R5: there is nobody to hide from."""
    record = bench.get_record()
    assert not record.has_deadline
    bench.close(held=0, commitments={})
    announce_late(bench, 2)
    assert get_members(record.compute_held()) == [2]


def test_the_deadline_binds_where_the_record_asks_for_verification() -> None:
    """R5."""
    assert build_bench(4, verification_percent=25).start().get_record().has_deadline


def test_a_seen_bit_of_a_member_without_a_batch_makes_nobody_wait() -> None:
    bench = build_bench(4, global_batch_size_start=2, global_batch_size_end=2).start()
    record = bench.get_record()
    idle = next(m for m in range(4) if m not in record.assignments)
    for member in range(1, 4):
        bench.hear(bench.build_finished(member, seen=1 << idle))
    assert get_announced(record) == 0


def test_without_overlap_a_result_stands_for_finished() -> None:
    """A2: t_q runs from the announcements, its own included."""
    bench = build_bench(4, overlap=False).start()
    bench.hear(bench.build_result(1))
    waiting = compute_standing(bench.engine.state, bench.get_record(), bench.get_record())
    assert waiting.missing == 0b1111, "member 1 is finished, its payload is not in"
    bench.feed(act.PayloadArrived(bench.get_known(1)[0].commitment))
    waiting = compute_standing(bench.engine.state, bench.get_record(), bench.get_record())
    assert waiting.missing == 0b1101
    bench.train()
    bench.deliver(2, 3)
    assert get_finished(bench) == []
    assert bench.get_reasons(WitnessMessage) == ["complete"]


def test_without_overlap_a_member_without_a_batch_says_finished() -> None:
    bench = build_bench(4, overlap=False, global_batch_size_start=2, global_batch_size_end=2)
    bench.start()
    owed = bench.get_record().assignments
    said = get_finished(bench)
    assert len(said) == (0 if bench.index in owed else 1)
    other = build_bench(4, own=next(m for m in range(4) if m not in owed), overlap=False,
                        global_batch_size_start=2, global_batch_size_end=2)  # fmt: skip
    other.start()
    assert [height for height, _ in get_finished(other)] == [0]


def test_a_refused_payload_is_not_waited_for(bench: Bench) -> None:
    """A3: what was fetched and breaks a rule is in, though it is not held."""
    bench.play()
    bench.close()
    bench.play()
    record = bench.get_record(0)
    bad = hold_back(bench, 2, 0)
    waiting = compute_standing(bench.engine.state, bench.get_record(1), record)
    assert waiting.missing == 0b100
    bench.feed(act.PayloadFailed(bad.commitment, "indices out of order", refused=True))
    waiting = compute_standing(bench.engine.state, bench.get_record(1), record)
    assert waiting.all_in
    assert not record.compute_held() >> 2 & 1


# --- Finished


def test_finished_goes_out_when_the_own_work_and_the_due_payloads_are_in(bench: Bench) -> None:
    """A2: once."""
    bench.run_round()
    bench.deliver(1, 2, 3)
    assert [height for height, _ in get_finished(bench)] == [0]
    bench.train()
    assert [(height, body.seen) for height, body in get_finished(bench)][1:] == [(1, 0b1111)]
    bench.wait(5.0)
    assert len(get_finished(bench)) == 2


def test_finished_goes_out_at_the_latest_in_round_witness() -> None:
    bench = build_bench(4, manual={act.Apply}).start()
    assert get_finished(bench) == []
    go_to_round_witness(bench)
    assert [height for height, _ in get_finished(bench)] == [0]


def test_finished_goes_out_on_leaving_a_round_whose_witness_phase_was_not_seen() -> None:
    """A2: a member without a batch is held by its Finished; RoundWitness may take no time."""
    bench = build_bench(4, manual={act.Apply}).start()
    bench.close(1, 2, 3, state_digest=b"\1" * 32)
    assert bench.state.current.height == 1
    assert bench.state.run_state is RunState.ROUND_TRAIN
    assert [height for height, _ in get_finished(bench)] == [0]
    bench.show()
    bench.wait(0.5)
    assert [height for height, _ in get_finished(bench)] == [0]


def start_with_a_payload_on_its_way(**config: int) -> Bench:
    """Round 1 runs and its own work is done; member 3 announced its result of round 0, and its payload is not here."""
    bench = build_bench(4, **config).start()
    bench.play()
    hold_back(bench, 3)
    bench.close()
    bench.train()
    return bench


def test_finished_goes_out_before_the_payloads_due_are_in_once_their_patience_has_passed() -> None:
    """A2: max(1.5 x t_q, t_q + 2 s) of the payloads; it says which are in, and is no offence."""
    bench = start_with_a_payload_on_its_way()
    bench.wait(1.9)
    assert [height for height, _ in get_finished(bench)] == [0]
    bench.wait(0.2)
    assert [(height, body.held) for height, body in get_finished(bench)][1:] == [(1, 0b0111)]
    assert bench.index in bench.get_record().finished_at, "it counts for the pace like any other"
    bench.close()
    assert bench.state.current.height == 2
    client = bench.state.clients[bench.index]
    assert (client.state, client.missed, client.late) == (ClientState.HEALTHY, 0, 0)


def test_finished_does_not_wait_for_the_payload_of_a_newcomer_but_the_report_does(bench: Bench) -> None:
    """A2, A3: else one that gives its payload to nobody would cost twice the slack, for t_q counts Finished."""
    bench.play()
    hold_back(bench, 3)
    bench.close()
    bench.get_record().electors = 0b0111
    bench.deliver(1, 2)
    bench.train()
    assert [(height, body.held) for height, body in get_finished(bench)] == [(0, 0), (1, 0b0111)]
    for member in (1, 2, 3):
        bench.hear(bench.build_finished(member))
    reported = len(bench.get_all(WitnessMessage))
    bench.wait(1.9)
    assert len(bench.get_all(WitnessMessage)) == reported, "its payload is waited for as long as ever"
    bench.wait(0.2)
    assert len(bench.get_all(WitnessMessage)) == reported + 1


def test_with_a_straggler_factor_of_zero_finished_waits_for_the_payloads_due_until_round_witness() -> None:
    """A2."""
    bench = start_with_a_payload_on_its_way(straggler_percent=0)
    bench.wait(500.0)
    assert [height for height, _ in get_finished(bench)] == [0]
    go_to_round_witness(bench)
    assert [(height, body.held) for height, body in get_finished(bench)][1:] == [(1, 0b0111)]


# --- A3 and W6: when a witness reports


def get_reports(bench: Bench) -> list[tuple[str, WitnessFlag]]:
    return [(r, m.flags) for r, m in zip(bench.get_reasons(WitnessMessage), bench.get_all(WitnessMessage), strict=True)]


def go_to_round_witness(bench: Bench) -> None:
    """Time for training is over, and nobody has reported."""
    bench.now += bench.state.config.max_round_train_time
    bench.settle()
    assert bench.state.run_state is RunState.ROUND_WITNESS
    bench.show()


def test_a_witness_is_complete_after_the_straggler_bound_without_the_slow_one(bench: Bench) -> None:
    """A3: max(1.5 x t_q, t_q + 2 s)."""
    bench.wait(6.0)
    bench.train()
    for member in (1, 2):
        bench.hear(bench.build_finished(member))
    assert get_reports(bench) == []
    bench.wait(2.9)
    assert get_reports(bench) == []
    bench.wait(0.2)
    assert get_reports(bench) == [("complete", WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST)]


def test_a_witness_that_is_not_complete_reports_at_half_of_the_witness_time() -> None:
    """W6 c: with what it has, without a digest."""
    bench = build_bench(4, manual={act.Apply}).start()
    go_to_round_witness(bench)
    assert bench.engine.get_deadline(bench.now) == bench.now + bench.state.config.round_witness_time / 2
    bench.wait(1.9)
    assert get_reports(bench) == []
    bench.wait(0.1)
    assert get_reports(bench) == [("half_time", WitnessFlag.NO_DIGEST)]


def test_in_round_witness_a_witness_reports_once_all_announced_payloads_are_in(bench: Bench) -> None:
    """W6 b."""
    bench.play()
    late = hold_back(bench, 3)
    bench.close()
    bench.record(1, held=0b0001, commitments={0: bytes([1] * 32)})
    go_to_round_witness(bench)
    assert get_reports(bench)[1:] == [], "only round 0 was reported: a payload is on its way"
    bench.feed(act.PayloadArrived(late.commitment))
    assert [reason for reason, _ in get_reports(bench)][1:] == ["fetched"]


def test_a_witness_follows_a_report_that_leaves_out_only_what_came_just_now(bench: Bench) -> None:
    """W6 b: more roots agree."""
    bench.play()
    bench.close()
    record = bench.get_record(0)
    early = compute_bits([0, 1, 2])
    bench.record(1, 2, held=early, commitments=record.get_commitments(early))
    reporting = bench.state.current
    bench.get_known(3, 0)[0].held_at = bench.now - 4.0
    followed = find_followed(reporting, record, bench.now)
    assert followed is not None
    assert followed.held == early
    bench.get_known(3, 0)[0].held_at = bench.now - 6.0
    assert find_followed(reporting, record, bench.now) is None, "it came in time"
    forged = [dataclasses.replace(w, results_root=bytes([7] * 32)) for w in reporting.witnesses]
    bench.get_known(3, 0)[0].held_at = bench.now
    false_root = dataclasses.replace(reporting, witnesses=forged)
    assert find_followed(false_root, record, bench.now) is None, "its root is not that of this list"


@pytest.mark.parametrize("kept", [0b0000, 0b0001, 0b0111])
def test_one_witness_that_reports_first_makes_nobody_leave_anything_out(kept: int) -> None:
    """W6 b: in rounds shorter than five seconds everything came just now; and its own list may still grow."""
    bench = build_bench(4, max_round_train_time=3).start()
    bench.play()
    late = hold_back(bench, 3)
    bench.close()
    record = bench.get_record(0)
    bench.record(1, held=kept, commitments=record.get_commitments(kept))
    go_to_round_witness(bench)
    assert get_reports(bench)[1:] == [], "a payload is on its way"
    bench.feed(act.PayloadArrived(late.commitment))
    assert bench.get_all(WitnessMessage)[-1].held == 0b1111


def test_where_nothing_is_attested_any_report_can_be_followed(bench: Bench) -> None:
    bench.record(2)
    followed = find_followed(bench.state.current, None, bench.now)
    assert followed is not None
    assert followed.held == 0
    assert find_followed(dataclasses.replace(bench.state.current, witnesses=[]), None, bench.now) is None


def test_only_elected_witnesses_report() -> None:
    reports = {}
    for own in range(4):
        bench = build_bench(4, own=own, witness_nodes=1).start()
        bench.play()
        reports[own] = [
            (m.member, r) for m, r in zip(bench.get_all(WitnessMessage), bench.get_reasons(WitnessMessage), strict=True)
        ]
    (elected,) = bench.get_record().witnesses
    assert reports == {own: [(own, "complete")] if own == elected else [] for own in range(4)}


# --- H4


@pytest.mark.parametrize(("reporting", "accused"), [((0, 1), {2, 3}), ((1, 3), {2}), ((0, 1, 3), set())])
def test_silent_witnesses_of_a_round_that_timed_out_are_accused_but_never_oneself(
    bench: Bench, reporting: tuple[int, ...], accused: set[int]
) -> None:
    """H4: who was itself cut off does not point at itself; a round closed early may have cut off honest witnesses."""
    bench.play()
    bench.close(*reporting)
    assert bench.state.current.height == 1
    assert {a.member for a in bench.get_all(HealthCheck)} == accused


def test_results_are_signed_once_even_if_the_round_is_shown_again(bench: Bench) -> None:
    bench.train()
    bench.show()
    bench.wait(3.0)
    raws = bench.get_announced()
    assert [m.height for m in raws if isinstance(m.body, Result)] == [0]
