"""A verifier's round: what it recomputes, reports, and puts on record (V7, V9, V10)."""

from dataclasses import replace
from typing import Any

import pytest
from audit_kit import accuse, answer, build_verified, build_verifier, get_reports, run_honest_round, run_to_audits
from kits.bench import Bench, go_to_last_drain
from kits.verification.work import HONEST, answer_audit

from psyche.client.engine import actions as act
from psyche.client.engine.auditing import verifier
from psyche.client.engine.auditing.verifier import PATIENCE_S
from psyche.client.engine.records import PayloadStatus
from psyche.core.encoding.account import decode_state
from psyche.core.encoding.header import decode_header
from psyche.core.encoding.work import decode_report, decode_table
from psyche.core.state.bits import get_members
from psyche.core.state.gossip import Finished, Result
from psyche.core.state.limits import MIN_STRAGGLER_SLACK_S, NOBODY
from psyche.core.state.messages import ReportAudit
from psyche.core.state.state import AuditReason, Challenge, ChallengeState
from psyche.core.state.timeline import get_round
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import compute_commitment
from psyche.wire.gossip import decode_gossip
from psyche.wire.trainer import AuditedPiece, AuditedTarget, AuditReply

HUGE = AuditedPiece(piece=0, loss=1e30, values=((0.0,) * 64,) * 2)


def get_only(bench: Bench) -> ReportAudit:
    (found,) = [m for m in bench.get_all(ReportAudit) if m.height == bench.state.current.height]
    return found


@pytest.mark.parametrize("overlap", [True, False])
def test_a_verifier_recomputes_its_list_reports_it_and_says_that_it_found_nothing(overlap: bool) -> None:
    bench = build_verifier(overlap=overlap)
    height, tasks = bench.state.current.height, bench.get_record().tasks[bench.index]
    assert bench.get_all(act.Train)[-1].height < height
    answer(bench, answer_audit)
    assert {audit.height for audit in bench.get_all(act.Audit)} <= {height - 1, height - 2}
    (header, announced) = get_reports(bench)[-1]
    rows = decode_report(announced.body)
    assert [(row.target, row.distance) for row in rows] == [(task.target, 0.0) for task in tasks]
    assert len(decode_table(announced.table, len(rows))) == len(rows)
    found = get_only(bench)
    assert (found.target, found.piece, found.reason) == (NOBODY, NOBODY, AuditReason.NONE)
    assert found.commitment == next(iter(bench.get_record().results[bench.index]))
    assert header.height == height
    assert bool([m for m in bench.get_said(Finished) if m.height == height]) == overlap  # else the report says it (A2)


def test_an_audit_asks_for_the_batch_with_which_payload_its_member_looked_ahead() -> None:
    bench = build_verifier(least_height=2)
    (case, *_) = bench.get_all(act.Audit)[0].cases
    height = bench.state.current.height - 1
    known = bench.get_known(case.member, height)[0]
    assert (case.start, case.end) == bench.get_record(height).assignments[case.member]
    assert (case.payload, case.piece_samples) == (known.header.body_hash, known.header.piece_samples)
    assert case.lookahead_lr == 0.0  # the results of these tests name no earlier one


def test_work_that_is_not_the_gradient_is_named_and_its_evidence_kept() -> None:
    bench = build_verifier(claims=dict.fromkeys(range(6), 1.5))
    answer(bench, answer_audit)
    found, first = get_only(bench), bench.get_record().tasks[bench.index][0]
    assert (found.target, found.reason) == (first.target, AuditReason.GRADIENT)
    known = bench.get_known(first.target, found.height - 1)[0]
    assert found.commitment == known.commitment
    (kept,) = bench.get_all(act.KeepEvidence)
    assert (kept.member, kept.height, kept.case.pieces) == (first.target, found.height - 1, (found.piece,))
    (signed,), evidence = kept.evidence.results, kept.evidence
    assert compute_commitment(signed.header) == known.commitment
    assert known.work is not None
    assert (evidence.reason, evidence.piece, evidence.table) == (found.reason, found.piece, known.work.raw)
    assert get_round(decode_state(evidence.record), found.height) is not None, "as its own round began"
    said = [a.before for a in bench.actions if isinstance(a, act.Submit)][-1]
    assert isinstance(said, types.AuditsReported)
    assert said.failed > 0
    bench.run.report(bench.index, found.target, AuditReason.GRADIENT, commitment=found.commitment, piece=found.piece)
    bench.show()
    assert [event.piece for event in bench.get_logs(types.Challenged)] == [found.piece]


def test_evidence_of_work_that_names_nothing_has_what_its_member_sent_in_the_round_before() -> None:
    """V13: else nobody could tell from the file that there was nothing to look ahead with."""
    bench = build_verifier(claims=dict.fromkeys(range(6), 1.5), least_height=2)
    height = bench.state.current.height - 1
    for known in [known for results in bench.get_record(height).results.values() for known in results.values()]:
        object.__setattr__(known, "header", replace(known.header, prev_commitment=build_hash("garbage")))
    answer(bench, answer_audit)
    kept = bench.get_all(act.KeepEvidence)[-1]
    sent = decode_gossip(bench.get_known(kept.member, height - 1)[0].raw)
    assert isinstance(sent.body, Result)
    assert kept.evidence.last_result == sent.body.header + sent.signature


def test_work_a_little_off_is_a_doubt_and_too_many_doubts_are_a_failure() -> None:
    bench = build_verifier(claims=dict.fromkeys(range(6), 1.002))
    reasons: list[AuditReason] = []
    for _ in range(3):
        answer(bench, answer_audit)
        reasons.append(AuditReason(get_only(bench).reason))
        run_to_audits(run_honest_round(bench))
    assert AuditReason.REPEATED in reasons
    assert set(reasons) <= {AuditReason.UNCLEAR, AuditReason.REPEATED}


def test_reports_of_others_count_towards_too_many_doubts() -> None:
    bench = build_verifier(8, least_height=2)
    record = bench.get_record()
    other = next(m for m in record.tasks if m != bench.index)
    for member in (task.target for task in record.tasks[other]):
        bench.engine.audits.verifier._verdicts[member] += [types.Verdict.UNCLEAR] * 2
    built = bench.build_report(other, distance=0.002)
    assert built is not None
    bench.hear(built[0])
    bench.feed(built[1])
    verdicts = bench.engine.audits.verifier._verdicts
    assert any(known.count(types.Verdict.UNCLEAR) >= 3 for known in verdicts.values())


def test_an_accusation_comes_before_a_doubt() -> None:
    bench = build_verifier()
    tasks = bench.get_record().tasks[bench.index]
    last = [task.target for task in tasks if not task.is_report][-1]
    done: list[int] = []

    def answer_one_by_one(audit: act.Audit) -> act.Audited:
        done.extend(case.member for case in audit.cases)
        is_last = audit.cases[-1].member == last and len(done) >= len(tasks) - 1
        found = answer_audit(audit, scale=1 / 1.002)
        if is_last and found.reply is not None:
            wrong = answer_audit(audit, scale=2.0).reply
            assert wrong is not None
            found = act.Audited(audit, wrong)
        return found

    answer(bench, answer_one_by_one)
    assert get_only(bench).reason == AuditReason.GRADIENT


def build_accuser() -> tuple[Bench, list[int]]:
    """A verifier that finds each of its targets guilty, and these targets."""
    bench = build_verifier(8, claims=dict.fromkeys(range(8), 1.5))
    return bench, [task.target for task in bench.get_record().tasks[bench.index] if not task.is_report]


def test_a_verifier_names_somebody_else_where_the_first_is_accused_already() -> None:
    bench, (first, *others) = build_accuser()
    accuse(bench, first)
    bench.show()
    answer(bench, answer_audit)
    assert get_only(bench).target == next(m for m in others if m != first)


def open_another(bench: Bench) -> None:
    """Open a challenge of the same accuser; while it is open, no other one is."""
    own = bench.state.clients[bench.index].slot
    bench.state.challenges[7] = Challenge(
        state=ChallengeState.OPEN, target=(own + 1) % 8, verifier=own, deadline_height=99
    )
    bench.show()


def test_a_verifier_keeps_its_accusation_until_it_can_open_a_challenge() -> None:
    bench, (first, *_) = build_accuser()
    height = bench.state.current.height
    open_another(bench)
    answer(bench, answer_audit)
    bench.play()
    assert len(get_reports(bench)) == 1
    assert [m for m in bench.get_all(ReportAudit) if m.height == height] == []
    bench.state.challenges[7] = Challenge()
    bench.show()
    (found,) = [m for m in bench.get_all(ReportAudit) if m.height == height]
    assert (found.target, found.reason) == (first, AuditReason.GRADIENT)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_verifier_whose_accusation_opens_nothing_leaves_a_doubt_in_time(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, (first, *_) = build_accuser()
    height = bench.state.current.height
    monkeypatch.setattr(verifier, "is_last_drain", lambda *_: is_last)  # then no round takes it later
    open_another(bench)
    answer(bench, answer_audit)
    for _ in range(0 if is_last else 2):
        run_honest_round(bench)
    (found,) = [m for m in bench.get_all(ReportAudit) if m.height == height]
    assert (found.target, found.reason) == (first, AuditReason.GRADIENT)


def test_a_verifier_for_which_others_wait_reports_what_it_has() -> None:
    bench = build_verifier(8)
    (first,) = bench.get_all(act.Audit)[-1].cases
    for member in get_members(bench.state.current.members):
        if member != bench.index:
            bench.hear(bench.build_finished(member))
    assert get_reports(bench) == []  # nothing is done yet, and one piece may be late
    bench.feed(answer_audit(bench.get_all(act.Audit)[-1]))
    (row,) = decode_report(get_reports(bench)[-1][1].body)
    assert row.target == first.member


def test_a_running_audit_is_cut_short_when_time_is_up_and_what_is_done_counts() -> None:
    bench = build_verifier(8)
    bench.engine.audits.verifier.own.is_whole_due = False
    bench.feed(answer_audit(bench.get_all(act.Audit)[-1]))
    for member in get_members(bench.state.current.members):
        if member != bench.index:
            bench.hear(bench.build_finished(member))
    assert len(bench.get_all(act.CancelAudit)) == 1
    bench.feed(answer_audit(bench.get_all(act.Audit)[-1], most=1))
    assert len(decode_report(get_reports(bench)[-1][1].body)) == 2


def test_a_verifier_goes_on_while_the_round_waits_for_a_trainer_anyway_but_not_to_the_end() -> None:
    bench = build_verifier(8)
    bench.engine.audits.verifier.own.is_whole_due = False
    bench.feed(answer_audit(bench.get_all(act.Audit)[-1]))
    record = bench.get_record()
    last, half_patience = max(record.assignments), MIN_STRAGGLER_SLACK_S / 2
    bench.wait(half_patience / 4)
    for member in get_members(bench.state.current.members):
        if member not in (bench.index, last):
            bench.hear(bench.build_finished(member))
    assert bench.get_all(act.CancelAudit) == []
    assert bench.now + half_patience in bench.engine.duty.get_deadlines(record)
    bench.wait(half_patience)
    assert len(bench.get_all(act.CancelAudit)) == 1


def test_work_on_its_way_is_waited_for_and_not_for_long() -> None:
    bench = build_verified(6, 0, manual=(act.Audit,))
    while bench.index not in bench.get_record().tasks:
        bench.play()
        last = bench.state.current.height
        for known in (k for m in range(6) for k in bench.get_known(m, last) if m != bench.index):
            known.status, known.work = PayloadStatus.FETCHING, None
        bench.close()
    assert bench.get_all(act.Audit) == []
    assert bench.engine.get_deadline(bench.now) is not None
    bench.wait(PATIENCE_S)
    assert bench.get_logs(types.NotSent)[-1].reason == "there is nothing that this client could audit"
    assert bench.get_all(ReportAudit) == []


@pytest.mark.parametrize("reason", ["the weights are not here", "the trainer was lost"])
def test_a_trainer_that_cannot_recompute_holds_up_nothing(reason: str) -> None:
    bench = build_verifier()
    answer(bench, lambda audit: act.Audited(audit, None, reason))
    assert get_reports(bench) == []
    assert {event.reason for event in bench.get_logs(types.NotAudited)} == {reason}
    assert [m for m in bench.get_said(Finished) if m.height == bench.state.current.height]
    bench.run_rounds(3)
    assert bench.state.current.height >= 4


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [((), "data: gone"), ((HUGE,), "a number is beyond what a table can hold")],
)
def test_work_that_cannot_be_recomputed_is_logged_with_the_reason(
    pieces: tuple[AuditedPiece, ...], reason: str
) -> None:
    refused = "" if pieces else reason
    reply = AuditReply(targets=(AuditedTarget(pieces=pieces, refused=refused),), seconds=0.0)
    bench = build_verifier()
    answer(bench, lambda audit: act.Audited(audit, reply))
    assert {event.reason for event in bench.get_logs(types.NotAudited)} == {reason}
    assert bench.get_all(ReportAudit) == []


def test_an_audit_that_other_work_cut_short_is_asked_for_again() -> None:
    bench = build_verifier()
    bench.feed(answer_audit(bench.get_all(act.Audit)[-1]))
    asked = bench.get_all(act.Audit)[-1]
    bench.feed(answer_audit(asked, most=0))
    assert bench.get_all(act.Audit)[-1].cases == asked.cases


def build_auditor_of_reports(**changes: Any) -> Bench:
    """A verifier one of whose audits is of another's report."""
    bench = build_verifier(8, least_height=2, global_batch_size_start=96, global_batch_size_end=96, **changes)
    for _ in range(14):
        record = bench.get_record()
        wanted = [task for task in record.tasks.get(bench.index, []) if task.is_report]
        if wanted and any(bench.get_known(task.target, record.height - 1) for task in wanted):
            return bench
        bench.forget()
        run_honest_round(bench)
    raise AssertionError("no report was audited")


def test_rows_of_a_verifiers_report_are_audited_at_the_weights_of_its_own_audits() -> None:
    """V7: every eighth audit is of a report."""
    bench = build_auditor_of_reports()
    answer(bench, answer_audit)
    rows = decode_report(get_reports(bench)[-1][1].body)
    about = [row for row in rows if row.is_report]
    assert about
    assert all(row.distance < 1e-6 for row in about)
    assert bench.state.current.height - 2 in {audit.height for audit in bench.get_all(act.Audit)}


def test_reports_are_audited_before_most_batches() -> None:
    """V9: verifiers that are slow audit each other too."""
    bench = build_auditor_of_reports()
    answer(bench, answer_audit)
    heights = [
        case.height - bench.state.current.height for audit in bench.get_all(act.Audit)[-3:] for case in audit.cases
    ]
    assert heights[:2] == [-1, -2]
    assert -2 not in heights[heights.count(-2) + 1 :]


def test_evidence_of_a_report_has_the_work_that_its_row_is_about() -> None:
    bench = build_auditor_of_reports()
    height, found = bench.state.current.height, 0

    def answer_reports_wrongly(audit: act.Audit) -> act.Audited:
        return answer_audit(audit, scale=1.5 if audit.height == height - 2 else 1.0)

    answer(bench, answer_reports_wrongly)
    for kept in bench.get_all(act.KeepEvidence):
        report, trained = kept.evidence.results
        row = decode_report(report.report)[kept.evidence.piece]
        header = decode_header(trained.header)
        assert (header.member, header.height, kept.case.pieces) == (row.target, height - 2, (row.piece,))
        found += kept.height == height - 1
    assert found == 1


def test_a_verifier_of_a_drain_round_reports_too() -> None:
    for own in range(6):
        bench = build_verified(6, own, rounds_per_epoch=6)
        go_to_last_drain(bench)
        drain = bench.state.epoch.drain_from_height
        if any(header.height == drain for header, _ in get_reports(bench)):
            return
    raise AssertionError("no member was elected in the first drain round")


def test_a_member_that_verifies_twice_after_the_record_went_back_signs_one_report() -> None:
    """M9."""
    bench = build_verifier()
    answer(bench, answer_audit)
    assert len(get_reports(bench)) == 1
    bench.engine.audits.enter_round(bench.get_record())
    bench.wait(1)
    answer(bench, answer_audit)
    assert len(get_reports(bench)) == 1


def test_a_round_that_ends_first_ends_the_audits() -> None:
    bench = build_verifier(8)
    bench.play()
    bench.close()
    assert any("had audited others" in event.reason for event in bench.get_logs(types.NotSent))
    assert len(bench.get_all(act.CancelAudit)) == 1


def test_a_target_that_has_left_or_is_dropped_is_judged_like_others() -> None:
    bench = build_verifier(8, claims=dict.fromkeys(range(8), HONEST))
    first = bench.get_record().tasks[bench.index][0].target
    bench.run.withdraw(first)
    bench.show()
    answer(bench, answer_audit)
    assert first in {row.target for row in decode_report(get_reports(bench)[-1][1].body)}


def test_signs_that_do_not_agree_with_the_gradient_of_a_whole_round_accuse_its_member() -> None:
    """V11: a fifth of the verifiers look at a whole round; which ones, the seed says."""
    for height in range(1, 14):
        bench = build_verifier(8, least_height=height)
        bench.engine.audits.verifier.own.is_whole_due = True
        answer(bench, lambda audit: answer_audit(audit, agreement=0.5))
        (case,) = next(audit.cases for audit in bench.get_all(act.Audit) if len(audit.cases[0].pieces) > 1)
        assert len(case.pieces) == len(bench.get_known(case.member, case.height)[0].work.table) - (case.height == 0)  # pyright: ignore[reportOptionalMemberAccess]
        assert get_only(bench).reason == AuditReason.SIGNS
        return


def test_an_accused_member_goes_on_to_be_audited() -> None:
    bench = build_verifier(8, least_height=2)
    target = next(iter(bench.get_record(bench.state.current.height - 1).assignments))
    if target != bench.index:
        accuse(bench, target)
        bench.show()
    answer(bench, answer_audit)
    assert get_reports(bench)
