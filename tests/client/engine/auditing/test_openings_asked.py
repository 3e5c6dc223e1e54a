"""Whole rounds: what members open of their momenta, and what verifiers and jurors conclude from it (V11, V12)."""

from dataclasses import replace
from typing import Any

import pytest
from audit_kit import answer, build_verified, get_reports
from kits.bench import Bench
from kits.verification.work import answer_audit
from test_jury import build_accusation, go_to_jury
from test_verifier import get_only

from psyche.client.engine import actions as act
from psyche.client.engine.auditing.questions import Question, find_link, find_task
from psyche.client.engine.auditing.verifier import PATIENCE_S
from psyche.core.committee.audits import LINK_EVERY, is_opened
from psyche.core.encoding.header import encode_header
from psyche.core.state.bits import get_members
from psyche.core.state.messages import JudgeChallenge
from psyche.core.state.state import ZERO32, AuditReason
from psyche.telemetry import types
from psyche.testing.builders import build_hash

BLOB = build_hash("opening")


def build_link_audit(**changes: Any) -> tuple[Bench, act.AskOpening]:
    """The engine under test audits round 0 as a verifier, and it is its turn to look at a whole round."""
    for own in range(8):
        bench = build_verified(8, own, manual=(act.Audit,), shows_momenta=True, **changes)
        bench.run_round()
        if bench.index in bench.get_record().tasks:
            bench.engine.audits.verifier.own.is_whole_due = True
            bench.feed(answer_audit(bench.get_all(act.Audit)[-1]))
            (asked,) = bench.get_all(act.AskOpening)
            answer(bench, answer_audit)
            return bench, asked
    raise AssertionError("nobody was elected")


def arrive(bench: Bench, asked: act.AskOpening, blob: bytes, *, is_forged: bool = False) -> None:
    bench.feed(act.OpeningArrived(asked.epoch, asked.height, asked.member, blob, is_forged))


def test_a_member_opens_its_momenta_before_it_trains_on_where_a_verifier_may_look_at_its_whole_round() -> None:
    bench = build_verified(6, manual=(act.Audit,))
    opened: set[int] = set()
    for _ in range(12):
        bench.run_round()
        record, height = bench.get_record(), bench.state.current.height - 1
        asked = [action for action in bench.get_all(act.Open) if action.height == height]
        has_trained = bench.index in bench.get_record(height).assignments
        assert bool(asked) == (has_trained and is_opened(record.seed, record.audits, bench.index))
        opened |= {action.height for action in asked if action.seed == record.seed}
    assert 0 < len(opened) < 8
    for number, action in enumerate(bench.actions):
        if isinstance(action, act.Train):
            assert not [
                one for one in bench.actions[number:] if isinstance(one, act.Open) and one.height < action.height - 1
            ]


def test_a_member_opens_nothing_where_the_run_asks_for_no_chunks() -> None:
    bench = build_verified(6, manual=(act.Audit,), opened_chunks=0)
    bench.run_round()
    assert bench.get_all(act.Open) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"link_distance": 0.0}, AuditReason.NONE),
        ({"link_distance": 0.002}, AuditReason.NONE),
        ({"link_distance": 0.5}, AuditReason.LINK),
        ({"link_reason": AuditReason.SELECTION}, AuditReason.SELECTION),
        ({"link_distance": 0.0, "agreement": 0.1}, AuditReason.NONE),
    ],
)
def test_a_verifier_has_the_whole_round_of_one_member_computed_with_what_it_opens(
    found: dict[str, Any], reason: AuditReason
) -> None:
    bench, asked = build_link_audit()
    known = bench.get_known(asked.member, 0)[0]
    assert asked.keys == (bench.state.clients[asked.member].p2p,)
    assert (asked.link.momentum_before, asked.link.momentum_after) == (ZERO32, known.header.momentum_after)
    assert asked.link.seed == bench.get_record(1).seed
    assert get_reports(bench) == []
    arrive(bench, asked, BLOB)
    (case,) = bench.get_all(act.Audit)[-1].cases
    assert case.link == asked.link._replace(opening=BLOB)
    answer(bench, lambda audit: answer_audit(audit, **found))
    named = get_only(bench)
    assert named.reason == reason
    kept = bench.get_all(act.KeepEvidence)
    assert [(one.evidence.reason, one.case) for one in kept] == ([(reason, case)] if reason else [])


def test_a_whole_round_that_is_computed_too_late_accuses_nobody_in_the_next_report() -> None:
    """A jury would look for it in the round before that report's, and find nothing."""
    bench, asked = build_link_audit()
    arrive(bench, asked, BLOB)
    late = bench.get_all(act.Audit)[-1]
    bench.play()
    bench.close()
    bench.feed(answer_audit(late, link_distance=0.5))
    assert bench.get_logs(types.RoundAudited)[-1].reason == AuditReason.LINK
    assert bench.engine.audits.verifier.own.whole is None


@pytest.mark.parametrize(
    ("is_forged", "is_there", "reason"),
    [(False, True, AuditReason.WITHHELD), (False, False, AuditReason.NONE), (True, True, AuditReason.PATHS)],
)
def test_who_is_there_and_does_not_open_its_momenta_withholds_them(
    is_forged: bool, is_there: bool, reason: AuditReason
) -> None:
    bench, asked = build_link_audit()
    record = bench.get_record()
    record.heard = record.heard | 1 << asked.member if is_there else record.heard & ~(1 << asked.member)
    bench.now += PATIENCE_S
    arrive(bench, asked, ZERO32, is_forged=is_forged)
    assert get_only(bench).reason == reason
    assert [one.evidence.reason for one in bench.get_all(act.KeepEvidence)] == ([reason] if reason else [])


def test_nobody_waits_long_for_what_a_member_opens() -> None:
    bench, asked = build_link_audit()
    bench.wait(asked.deadline - bench.now)
    assert len(get_reports(bench)) == 1


def test_an_opening_that_comes_too_late_or_is_not_asked_for_changes_nothing() -> None:
    bench, asked = build_link_audit()
    bench.feed(act.OpeningArrived(asked.epoch, asked.height + 1, asked.member, BLOB))
    assert get_reports(bench) == []
    bench.wait(asked.deadline - bench.now)
    audits = len(bench.get_all(act.Audit))
    arrive(bench, asked, BLOB)
    assert len(bench.get_all(act.Audit)) == audits


def find_links(bench: Bench, **changes: Any) -> set[object]:
    """The links of all members' results of the round before, whose headers are changed so."""
    found: set[object] = set()
    record = bench.get_record()
    for task in (task for task in record.audits if not task.is_report):
        question = find_task(bench.engine._x, record, task)
        assert isinstance(question, Question)
        before = bench.get_known(question.member, record.height - 2)
        if before and question.member != bench.index and question.result.header.prev_commitment == before[0].commitment:
            found.add(find_link(bench.engine._x, replace(question.result.header, **changes)))
    return found


def build_chained(rounds: int = 2, **changes: Any) -> Bench:
    bench = build_verified(8, manual=(act.Audit,), shows_momenta=True, **changes)
    for _ in range(rounds):
        bench.run_round()
    return bench


@pytest.mark.parametrize("overlap", [True, False])
def test_what_was_in_flight_or_applied_was_taken_out_of_the_momentum(overlap: bool) -> None:
    bench = build_chained(overlap=overlap)
    links = find_links(bench)
    assert links
    sent = {bench.get_known(member, 0)[0].header.body_hash for member in bench.get_record(0).assignments}
    assert {link.taken_out for link in links if isinstance(link, act.Link)} <= sent


def test_a_momentum_that_is_not_the_one_before_contradicts_it() -> None:
    assert find_links(build_chained(), momentum_before=build_hash("x")) == {AuditReason.MOMENTUM}


@pytest.mark.parametrize(
    "changes", [{"train_count": 9}, {"momentum_after": ZERO32}, {"prev_commitment": bytes(31) + b"1"}]
)
def test_a_round_whose_momentum_is_not_known_gives_no_verdict(changes: dict[str, Any]) -> None:
    assert find_links(build_chained(), **changes) == {None}


def test_a_round_in_which_values_were_given_back_gives_no_verdict() -> None:
    """R8."""
    bench = build_chained(3)
    assert None not in find_links(bench)
    bench.get_record(0).applied = frozenset()
    assert None in find_links(bench)


# --- jurors


def build_trial(
    reason: AuditReason, least_height: int = 1, *, is_owed: bool = True
) -> tuple[Bench, act.AskOpening | None]:
    """A juror's round; `is_owed`: a verifier may ask the accused to open its momenta."""
    for own in range(6):
        bench, target = build_accusation(own, reason, least_height, shows_momenta=True)
        after = bench.get_record(bench.state.challenges[0].height + 1)
        seeds = (after.seed[:1] + bytes([number]) + after.seed[2:] for number in range(LINK_EVERY))
        after.seed = next(seed for seed in seeds if is_opened(seed, after.audits, target) == is_owed)
        go_to_jury(bench)
        bench.play()
        asked = bench.get_all(act.AskOpening)
        found = asked or bench.get_logs(types.Judged)
        if found and bench.state.challenges[0].deadline_height - 1 == bench.state.current.height:
            return bench, asked[-1] if asked else None
    raise AssertionError("no juror")


@pytest.mark.parametrize(
    ("reason", "blob", "is_forged", "votes"),
    [
        (AuditReason.WITHHELD, ZERO32, False, [1]),
        (AuditReason.WITHHELD, BLOB, False, []),
        (AuditReason.PATHS, ZERO32, True, [1]),
        (AuditReason.PATHS, ZERO32, False, []),
        (AuditReason.LINK, ZERO32, False, []),
    ],
)
def test_a_juror_asks_the_accused_too(reason: AuditReason, blob: bytes, is_forged: bool, votes: list[int]) -> None:
    bench, asked = build_trial(reason)
    assert asked is not None
    assert len(asked.keys) == 1 + (reason is AuditReason.LINK), "the accuser has what it judged by"
    arrive(bench, asked, blob, is_forged=is_forged)
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == votes
    assert [one.evidence.reason for one in bench.get_all(act.KeepEvidence)] == [reason] * len(votes)


@pytest.mark.parametrize(("distance", "votes"), [(0.5, [1]), (0.0, [0]), (0.002, [])])
def test_a_juror_judges_a_link_by_the_whole_round(distance: float, votes: list[int]) -> None:
    bench, asked = build_trial(AuditReason.LINK)
    assert asked is not None
    arrive(bench, asked, BLOB)
    answer(bench, lambda audit: answer_audit(audit, link_distance=distance))
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == votes
    (kept,) = bench.get_all(act.KeepEvidence)
    assert (kept.evidence.reason, kept.case.link and kept.case.link.opening) == (AuditReason.LINK, BLOB)


def test_a_juror_that_needs_its_last_round_still_knows_what_the_momentum_was_before() -> None:
    bench, asked = build_trial(AuditReason.LINK, least_height=3)
    assert asked is not None
    arrive(bench, asked, BLOB)
    bench.close(*(m for m in get_members(bench.state.current.members) if bench.engine._x.is_healthy(m)))
    assert bench.state.challenges[0].deadline_height == bench.state.current.height
    bench.wait(1)
    assert bench.get_logs(types.Judged) == []
    answer(bench, lambda audit: answer_audit(audit, link_distance=0.5))
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == [1]


def test_who_opens_nothing_within_a_round_withholds_it_from_the_juror() -> None:
    bench, _ = build_trial(AuditReason.WITHHELD)
    bench.run_round()
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == [1]


def test_who_is_asked_to_open_its_momenta_by_nobody_who_may_is_innocent_of_withholding_them() -> None:
    """Whoever accuses it all the same has lied (V12)."""
    bench, asked = build_trial(AuditReason.WITHHELD, is_owed=False)
    assert asked is None
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == [0]


@pytest.mark.parametrize(("before", "votes"), [(build_hash("x"), [1]), (None, [0])])
def test_headers_that_contradict_each_other_convict(before: bytes | None, votes: list[int]) -> None:
    bench, target = build_accusation(reason=AuditReason.MOMENTUM, shows_momenta=True, least_height=2)
    height = bench.state.challenges[0].height
    known = bench.get_known(target, height)[0]
    if before is not None:
        known.header = replace(known.header, momentum_before=before)
        bench.engine.audits.jury._links.clear()  # it has seen the header of before
    go_to_jury(bench)
    bench.play()
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == votes
    (kept,) = bench.get_all(act.KeepEvidence)
    assert kept.evidence.last_result == encode_header(bench.get_known(target, height - 1)[0].header)
