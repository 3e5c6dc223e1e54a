"""Witnesses of the third round after the audited one judge the accused (V12, V15)."""

from typing import Any

import pytest
from audit_kit import accuse, build_verified, run_honest_round
from kits.bench import Bench
from kits.verification.work import answer_audit

from psyche.client.engine import actions as act
from psyche.core.committee.elections import get_verifiers
from psyche.core.state.messages import JudgeChallenge
from psyche.core.state.state import AuditReason, ChallengeState, ClientState, RunState
from psyche.telemetry import types


def build_accusation(
    own: int = 0, reason: AuditReason = AuditReason.GRADIENT, least_height: int = 1, *, is_report: bool = False,
    **changes: Any,
) -> tuple[Bench, int]:  # fmt: skip
    """Another member is accused, of its report as a verifier or of its batch; the engine under test is in each jury."""
    bench = build_verified(6, own, manual=(act.Audit,), **changes)
    targets: list[int] = []
    for _ in range(12):
        height = bench.state.current.height
        record = bench.get_record(height - 1) if height else None
        owed = () if record is None else record.reporters if is_report else record.assignments
        verifiers = get_verifiers(bench.state.current, bench.state.config)
        targets = [m for m in owed if m != own]
        is_free = height >= least_height and own not in verifiers
        if is_free and targets and any(v not in (own, targets[0]) for v in verifiers):
            break
        bench.run_round()
    accuse(bench, targets[0], reason)
    bench.show()
    return bench, targets[0]


def go_to_jury(bench: Bench) -> None:
    opened = next(c for c in bench.state.challenges if c.state is ChallengeState.OPEN)
    while bench.state.current.height < opened.deadline_height - 1:
        bench.run_round()


def judge(bench: Bench, **changes: Any) -> list[JudgeChallenge]:
    """Answer what it asks for as a juror."""
    running = bench.engine.audits.desk.running
    if running is not None:
        bench.feed(answer_audit(running, **changes))
    return bench.get_all(JudgeChallenge)


@pytest.mark.parametrize(("scale", "guilty"), [(1.0, 0), (1.5, 1)])
def test_a_juror_recomputes_the_piece_after_its_own_work_and_votes(scale: float, guilty: int) -> None:
    bench, target = build_accusation()
    go_to_jury(bench)
    assert bench.get_all(act.Audit) == []
    bench.play()
    (vote,) = judge(bench, scale=scale)
    assert (vote.height, vote.guilty) == (bench.state.current.height, guilty)
    (judged,) = bench.get_logs(types.Judged)
    assert (judged.target, judged.guilty) == (target, bool(guilty))
    assert len(bench.get_all(act.KeepEvidence)) == 1
    bench.wait(1)
    assert len(bench.get_all(JudgeChallenge)) == 1


def test_a_juror_that_has_not_judged_recomputes_before_its_own_work_in_the_last_round() -> None:
    bench, _ = build_accusation()
    go_to_jury(bench)
    bench.close(*(m for m in range(6) if m != bench.index))
    bench.forget()
    assert bench.engine.audits.holds_training
    assert judge(bench)


def test_a_juror_that_finds_the_piece_neither_right_nor_wrong_does_not_vote() -> None:
    bench, _ = build_accusation()
    go_to_jury(bench)
    bench.play()
    assert judge(bench, scale=1.002) == []
    assert [event.guilty for event in bench.get_logs(types.Judged)] == [None]


@pytest.mark.parametrize(("agreement", "votes"), [(0.5, [1]), (0.95, [0]), (-1.0, [])])
def test_signs_are_judged_by_the_whole_round(agreement: float, votes: list[int]) -> None:
    bench, _ = build_accusation(reason=AuditReason.SIGNS)
    go_to_jury(bench)
    bench.play()
    (case,) = bench.get_all(act.Audit)[-1].cases
    assert len(case.pieces) > 1
    assert [vote.guilty for vote in judge(bench, agreement=agreement)] == votes


def test_who_is_accused_of_the_signs_of_a_report_is_innocent_whatever_they_are_whom_it_is_about() -> None:
    """V11: a liar must not have a verifier put out for what another member sent."""
    bench, _ = build_accusation(reason=AuditReason.SIGNS, is_report=True)
    go_to_jury(bench)
    bench.play()
    assert [vote.guilty for vote in judge(bench, agreement=0.1)] == [0]


@pytest.mark.parametrize(("scale", "guilty"), [(1.0, 0), (1.002, 1)])
def test_pieces_that_are_unclear_too_often_convict_if_this_one_is(scale: float, guilty: int) -> None:
    bench, _ = build_accusation(reason=AuditReason.REPEATED)
    go_to_jury(bench)
    bench.play()
    assert [vote.guilty for vote in judge(bench, scale=scale)] == [guilty]


def test_a_juror_without_the_result_cannot_tell() -> None:
    bench, target = build_accusation()
    opened = next(c for c in bench.state.challenges if c.state is ChallengeState.OPEN)
    go_to_jury(bench)
    bench.get_record(opened.height).results.pop(target)
    bench.play()
    assert bench.get_all(act.Audit) == []
    assert bench.get_all(JudgeChallenge) == []
    (said,) = bench.get_logs(types.NotAudited)
    assert (said.target, said.height, "is not here" in said.reason) == (target, opened.height, True)


def test_a_conviction_is_told_in_words() -> None:
    bench, target = build_accusation()
    go_to_jury(bench)
    bench.show()
    for juror in range(1, 6):
        if bench.state.challenges[0].state is ChallengeState.OPEN and juror != target:
            try:
                bench.run.judge(juror)
            except Exception:  # noqa: BLE001 - the accuser has no vote
                continue
    bench.show()
    assert bench.state.clients[target].state is ClientState.EJECTED
    (ended,) = bench.get_logs(types.ChallengeEnded)
    assert ended.outcome == "put out: a piece of its work is not the gradient of its samples"
    assert (ended.guilty, ended.innocent) == (3, 0), "the last vote too: three of a jury of four"


def test_who_is_accused_at_the_end_of_an_epoch_is_judged_by_what_was_recomputed_in_its_cooldown() -> None:
    """V15: members have other numbers in the next epoch, and their weights are others."""
    bench, _ = build_accusation(rounds_per_epoch=3, least_height=3)
    while bench.state.run_state is not RunState.COOLDOWN:
        run_honest_round(bench)
    assert judge(bench, scale=1.5) == []
    assert [event.guilty for event in bench.get_logs(types.Judged)] == [True]
    bench.pass_time(bench.state.config.cooldown_time + 1)
    bench.warm_up()
    bench.start()
    bench.play()
    (vote,) = bench.get_all(JudgeChallenge)
    assert (vote.epoch, vote.guilty) == (bench.state.progress.epoch, 1)
