"""Verifiers and jurors of a run of local steps: a piece is an inner step, and nobody looks at whole rounds (V2, V7)."""

from dataclasses import replace
from typing import Any

import pytest
from audit_kit import answer, build_verified, build_verifier, get_reports, run_honest_round
from kits.bench import Bench
from kits.verification.work import answer_audit
from test_jury import build_accusation, go_to_jury, judge

from psyche.client.engine import actions as act
from psyche.client.engine.announcements import compute_step_lr
from psyche.client.engine.auditing.works import find_pieces, is_verified
from psyche.core.committee.audits import looks_at_whole
from psyche.core.encoding.header import NumericClass
from psyche.core.state.messages import JudgeChallenge, ReportAudit
from psyche.core.state.state import ZERO32, AuditReason, InnerOptimizer, Optimizer, OptimizerKind
from psyche.wire.trainer import LocalTarget

STEPS, MERGE = 8, 5
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, inner_steps=STEPS, merge_step=MERGE, compression_topk=4, compression_chunk=16,
    value_bits=2, error_decay=0.95, outer_rate=1.0, inner_optimizer=InnerOptimizer.ADAMW_ANEW,
)  # fmt: skip


def build_local_verifier(**changes: Any) -> Bench:
    return build_verifier(optimizer=OPTIMIZER, **{"shows_momenta": True, "least_height": 2} | changes)


def get_cases(bench: Bench) -> list[act.Case]:
    return [case for audit in bench.get_all(act.Audit) for case in audit.cases]


def test_inner_steps_before_the_merge_are_audited_as_their_member_took_them() -> None:
    bench = build_local_verifier()
    height, tasks = bench.state.current.height, bench.get_record().tasks[bench.index]
    answer(bench, answer_audit)
    (*_, (header, _)) = get_reports(bench)
    assert (header.height, header.inner_steps, header.piece_samples) == (height, 0, 0)
    of_last = [case for case in get_cases(bench) if case.height == height - 1]
    assert len(of_last) == len([task for task in tasks if not task.is_report])
    for case in of_last:
        known = bench.get_known(case.member, case.height)[0].header
        last = bench.get_known(case.member, case.height - 1)
        began_from = last[0].header if last and not last[0].work.report else None  # type: ignore[union-attr]
        assert case.local == LocalTarget(
            rates=(compute_step_lr(bench.state, known.step), compute_step_lr(bench.state, known.step + 1)),
            in_flight=0 if began_from is None else began_from.inner_steps, merge_step=MERGE,
            done=STEPS * (known.train_count - 1),
        )  # fmt: skip
        assert case.last == (ZERO32 if began_from is None else began_from.body_hash)
        assert (case.payload, case.lookahead_lr) == (ZERO32, 0.0), "nothing is compared, nobody looks ahead"
        assert all(0 <= piece < MERGE for piece in case.pieces)
    assert any(case.last != ZERO32 for case in of_last)


def test_an_inner_step_of_other_data_is_named_and_its_evidence_kept() -> None:
    bench = build_local_verifier(claims=dict.fromkeys(range(6), 1.5))
    answer(bench, answer_audit)
    found = bench.get_all(ReportAudit)[-1]
    assert found.reason == AuditReason.GRADIENT
    kept = bench.get_all(act.KeepEvidence)[-1]
    assert (kept.member, kept.case.pieces) == (found.target, (found.piece,))


@pytest.mark.parametrize("inner_steps", [0, 1])
def test_a_report_of_inner_steps_is_taken_if_it_names_none_of_its_own(inner_steps: int) -> None:
    """LS7: whoever refused it would take its verifier for a member that owes a result (H1)."""
    bench = build_verified(8, optimizer=OPTIMIZER)
    while not (others := [m for m in bench.get_record().tasks if m != bench.index]):
        run_honest_round(bench)
    built = bench.build_report(others[0], inner_steps=inner_steps)
    assert built is not None
    bench.hear(built[0])
    bench.feed(built[1])
    assert bench.get_record().is_held(others[0]) == (not inner_steps)


def test_a_result_of_local_steps_has_no_size_of_pieces() -> None:
    bench = build_verified(optimizer=OPTIMIZER)
    sized, plain = [m for m in bench.get_record().assignments if m != bench.index][:2]
    bench.hear(bench.build_result(sized, piece_samples=1))
    assert bench.get_known(sized) == []
    bench.deliver(plain)
    assert bench.get_record().is_held(plain)


@pytest.mark.parametrize(("height", "overlap", "count"), [(0, True, STEPS), (3, True, MERGE), (3, False, STEPS)])
def test_a_table_ends_at_the_merge_where_one_is_due(height: int, overlap: bool, count: int) -> None:
    bench = build_verified(optimizer=OPTIMIZER, overlap=overlap)
    member = next(m for m in bench.get_record().assignments if m != bench.index)
    assert find_pieces(replace(bench.build_header(member), height=height), bench.state) == range(count)


@pytest.mark.parametrize(
    ("kind", "first"), [(InnerOptimizer.ADAMW_ANEW, 3), (InnerOptimizer.MUON_ANEW, None)], ids=["AdamW", "Muon"]
)
def test_steps_that_honest_machines_compute_differently_in_bf16_are_not_audited(
    kind: InnerOptimizer, first: int | None
) -> None:
    bench = build_verified(optimizer=replace(OPTIMIZER, inner_optimizer=kind))
    member = next(m for m in bench.get_record().assignments if m != bench.index)
    header = replace(bench.build_header(member), numeric_class=NumericClass.BF16)
    assert find_pieces(header, bench.state) == (range(0) if first is None else range(first, STEPS))
    assert bench.engine.audits.tolerances.get(NumericClass.BF16, member) == 0.04
    assert bench.engine.audits.tolerances.get(NumericClass.FP32, member) == pytest.approx(0.001)


def test_a_verifier_owes_no_report_where_no_step_can_be_judged() -> None:
    bench = build_verified(8, optimizer=replace(OPTIMIZER, inner_optimizer=InnerOptimizer.MUON_ANEW))
    while not (others := [m for m in bench.get_record().tasks if m != bench.index]):
        run_honest_round(bench)
    (other, *_), before = others, bench.get_record(bench.state.current.height - 1)
    bench.hear(bench.build_finished(other))
    assert not bench.get_record().compute_held() >> other & 1
    for results in before.results.values():
        for known in results.values():
            object.__setattr__(known, "header", replace(known.header, numeric_class=NumericClass.BF16))
    bench.wait(1)
    assert bench.get_record().compute_held() >> other & 1


def test_nobody_looks_at_a_whole_round_of_local_steps_and_nobody_opens_what_was_not_sent() -> None:
    looked = 0
    for own in range(6):
        bench = build_verified(6, own, optimizer=OPTIMIZER, shows_momenta=True)
        for _ in range(4):
            record = bench.get_record()
            looked += bench.index in record.tasks and looks_at_whole(record.seed, bench.index)
            run_honest_round(bench)
        assert bench.get_all(act.AskOpening) == bench.get_all(act.Open) == []
        assert all(len(case.pieces) == 1 for case in get_cases(bench))
    assert looked, "one of them would look at a whole round of DisTrO"


def build_juror(reason: AuditReason) -> tuple[Bench, int]:
    """Whoever has no audits of its own on the way to the jury; its own work of that round is still to be done."""
    for own in range(6):
        bench, target = build_accusation(own, reason, optimizer=OPTIMIZER)
        go_to_jury(bench)
        if not bench.get_all(act.Audit):
            return bench, target
    raise AssertionError("everybody audits")


@pytest.mark.parametrize("reason", [AuditReason.SIGNS, AuditReason.MOMENTUM, AuditReason.WITHHELD])
def test_a_juror_finds_innocent_whom_somebody_accuses_of_a_whole_round(reason: AuditReason) -> None:
    bench, _ = build_juror(reason)
    bench.play()
    assert [vote.guilty for vote in bench.get_all(JudgeChallenge)] == [0]
    assert bench.get_all(act.Audit) == []


@pytest.mark.parametrize(("scale", "guilty"), [(1.0, 0), (1.5, 1)])
def test_a_juror_takes_an_accused_inner_step_again(scale: float, guilty: int) -> None:
    bench, target = build_juror(AuditReason.GRADIENT)
    bench.play()
    assert [vote.guilty for vote in judge(bench, scale=scale)] == [guilty]
    (case,) = get_cases(bench)
    assert (case.member, case.pieces) == (target, (0,))
    assert case.local is not None


def test_a_run_whose_inner_state_goes_on_has_no_tables() -> None:
    bench = build_verified(optimizer=replace(OPTIMIZER, inner_optimizer=InnerOptimizer.ADAMW))
    assert not is_verified(bench.state)
