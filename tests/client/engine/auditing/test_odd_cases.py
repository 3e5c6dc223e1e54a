"""What happens between an audit and its verdict, and batches, rounds and runs of odd sizes: nothing stops a round."""

from collections.abc import Callable

import pytest
from audit_kit import answer, build_verified, build_verifier, get_reports, run_honest_round, run_to_audits
from kits.bench import Bench
from kits.verification.work import answer_audit, build_table
from test_jury import build_accusation
from test_openings_asked import build_chained, find_links

from psyche.client.engine import actions as act
from psyche.client.engine.auditing.verifier import PATIENCE_S
from psyche.client.engine.weights import Diverged
from psyche.core.committee.assignment import compute_assignments
from psyche.core.encoding.work import decode_report
from psyche.core.state.messages import JudgeChallenge, ReportAudit
from psyche.core.state.state import ZERO32, AuditReason, ChallengeState, RoundFlag, SlotState

Forge = Callable[[Bench, int, int], bytes]


def take_from_neighbour(bench: Bench, member: int, height: int) -> bytes:
    """The table of a member with as many pieces."""
    owed = compute_assignments(bench.get_round(height), bench.state.config)
    length = len(build_table(bench.state, member, height))
    others = [build_table(bench.state, one, height) for one in owed if one != member]
    return next(table for table in others if len(table) == length)


def take_from_round_before(bench: Bench, member: int, height: int) -> bytes:
    """What it showed a round ago, as far as it had samples then."""
    owed = compute_assignments(bench.get_round(max(0, height - 1)), bench.state.config)
    own, old = (build_table(bench.state, member, h) if member in owed else b"" for h in (height, max(0, height - 1)))
    return old if len(old) == len(own) else own


@pytest.mark.parametrize("forge", [take_from_neighbour, take_from_round_before])
def test_who_shows_the_table_of_another_member_or_round_is_accused(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Bench.build_table

    def build(bench: Bench, member: int, height: int) -> bytes:
        # the first round's tables have their calibration row too
        return (
            forge(bench, member, height) if height and honest(bench, member, height) else honest(bench, member, height)
        )

    monkeypatch.setattr(Bench, "build_table", build)
    bench = build_verifier(8, least_height=2)
    for _ in range(6):
        answer(bench, answer_audit)
        sent = bench.get_all(ReportAudit)
        if any(message.reason == AuditReason.GRADIENT for message in sent):
            return
        run_to_audits(run_honest_round(bench))
    raise AssertionError("nobody was accused")


@pytest.mark.parametrize("batch", [6, 14])
def test_members_with_one_sample_or_fewer_than_eight_have_a_piece_for_each(batch: int) -> None:
    bench = build_verifier(8, global_batch_size_start=batch, global_batch_size_end=batch)
    answer(bench, answer_audit)
    height = bench.state.current.height - 1
    for member, (start, end) in bench.get_record(height).assignments.items():
        for known in bench.get_known(member, height):
            assert known.work is not None
            assert len(known.work.table) - (known.work.calibration is not None) == end - start + 1
    assert decode_report(get_reports(bench)[-1][1].body)


def test_a_verifier_of_a_void_round_s_successor_audits_what_was_shown_in_it() -> None:
    bench = build_verified(8, manual=(act.Audit,), overlap=False)
    for _ in range(12):
        bench.play()
        answer(bench, answer_audit)
        height = bench.state.current.height
        bench.close(held=0, commitments={})
        assert bench.get_round(height).flags & RoundFlag.VOID
        if bench.index in bench.get_record().tasks:
            answer(bench, answer_audit)
            assert get_reports(bench)[-1][0].height == height + 1
            return
        run_honest_round(bench)
    raise AssertionError("it was not elected")


def deliver_without(bench: Bench, silent: int) -> None:
    """What the members but one show in a round."""
    owed = compute_assignments(bench.state.current, bench.state.config)
    bench.deliver(*(member for member in owed if member not in (bench.index, silent)))
    bench.report(*(member for member in bench.get_record().tasks if member not in (bench.index, silent)))
    if bench.index in owed:
        bench.train()
    bench.wait(1)


def judge_without(bench: Bench, silent: int) -> list[JudgeChallenge]:
    """Go on without a member up to the round of the jury; return the vote there."""
    (opened,) = [one for one in bench.state.challenges if one.state is ChallengeState.OPEN]
    while bench.state.current.height < opened.deadline_height - 1:
        deliver_without(bench, silent)
        answer(bench, answer_audit)
        bench.close(*(member for member in bench.run.get_members() if member != silent))
    for _ in range(2):  # who verifies in the first of these rounds judges in the second
        deliver_without(bench, silent)
        for _ in range(2):
            answer(bench, lambda audit: answer_audit(audit, scale=1.5))
            bench.wait(PATIENCE_S)
        if not bench.get_all(JudgeChallenge):
            bench.close(*(member for member in bench.run.get_members() if member != silent))
    return bench.get_all(JudgeChallenge)


def let_heal(_bench: Bench, _target: int) -> None:
    """It says nothing while it heals."""


def let_leave(bench: Bench, target: int) -> None:
    bench.run.leave(target)


def let_be_dropped(bench: Bench, target: int) -> None:
    bench.run.withdraw(target)


@pytest.mark.parametrize("event", [let_heal, let_leave, let_be_dropped])
def test_a_target_that_heals_leaves_or_is_dropped_before_its_jury_is_judged_all_the_same(
    event: Callable[[Bench, int], None],
) -> None:
    bench, target = build_accusation()
    slot = bench.state.clients[target].slot
    event(bench, target)
    bench.show()
    assert [vote.guilty for vote in judge_without(bench, target)] == [1]
    assert bench.state.registry.slots[slot].state is not SlotState.FREE


def test_a_target_that_restarts_is_judged_by_what_it_opens_of_its_new_momentum() -> None:
    """M9: its momentum is zero again, and its result names none before it."""
    (link, *others) = find_links(build_chained(), train_count=1, momentum_before=ZERO32, prev_commitment=ZERO32)
    assert {type(one) for one in (link, *others)} == {act.Link}
    assert {one.taken_out for one in (link, *others) if isinstance(one, act.Link)} == {ZERO32}


def test_an_accuser_that_dies_before_it_has_sent_its_report_leaves_the_challenge_to_the_jury() -> None:
    bench, _ = build_accusation()
    (opened,) = [one for one in bench.state.challenges if one.state is ChallengeState.OPEN]
    accuser = next(m for m, one in enumerate(bench.state.clients) if one.slot == opened.verifier)
    assert not bench.get_known(accuser), "it has announced no report"
    bench.run.withdraw(accuser)
    bench.show()
    assert [vote.guilty for vote in judge_without(bench, accuser)] == [1]


def test_a_report_that_never_came_is_not_audited_and_the_others_are() -> None:
    bench = build_verifier(8, least_height=2, global_batch_size_start=96, global_batch_size_end=96)
    for _ in range(14):
        record = bench.get_record()
        missing = [task for task in record.tasks.get(bench.index, []) if task.is_report]
        if missing:
            before = bench.get_record(record.height - 1)
            for task in missing:
                before.results.pop(task.target, None)
            answer(bench, answer_audit)
            rows = decode_report(get_reports(bench)[-1][1].body)
            assert rows
            assert not any(row.is_report for row in rows)
            return
        run_honest_round(bench)
    raise AssertionError("no report was to be audited")


def test_a_juror_that_heals_votes_for_nothing_until_its_weights_are_the_agreed_ones() -> None:
    bench, _ = build_accusation()
    (opened,) = [one for one in bench.state.challenges if one.state is ChallengeState.OPEN]
    while bench.state.current.height < opened.deadline_height - 1:
        bench.run_round()
    bench.spoil_weights()
    assert isinstance(bench.engine.weights._state, Diverged)
    bench.play()
    assert bench.get_all(act.Audit) == []
    assert bench.get_all(JudgeChallenge) == []
