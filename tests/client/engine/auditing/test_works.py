"""Tables and reports of others: what is refused, and who has shown what it owes (R3, W1, V2, V6, V9)."""

import struct
from typing import Any

import pytest
from audit_kit import build_verified, build_verifier, run_honest_round
from kits.bench import Bench, build_bench
from kits.verification.work import build_table, sketch

from psyche.client.engine import actions as act
from psyche.client.engine.auditing.desk import Answer
from psyche.client.engine.auditing.questions import Question, _ask
from psyche.client.engine.auditing.verifier import Finding
from psyche.client.engine.records import PayloadStatus
from psyche.core.encoding.header import NumericClass, ResultKind
from psyche.core.encoding.work import AUDIT_ROW_BYTES, ROW_BYTES, WorkRow, encode_table
from psyche.core.state.gossip import Result
from psyche.core.state.messages import Withdraw
from psyche.core.state.state import ZERO32, AuditReason
from psyche.telemetry import types
from psyche.testing.builders import build_hash


def get_trainer(bench: Bench) -> int:
    return next(m for m in bench.get_record().assignments if m != bench.index)


def get_refusals(bench: Bench) -> list[str]:
    return [event.reason for event in bench.get_logs(types.Refused)]


def offer(bench: Bench, member: int, table: bytes) -> PayloadStatus:
    """Its result arrives with this table."""
    message = bench.build_result(member)
    bench.hear(message)
    assert isinstance(message.body, Result)
    bench.feed(act.PayloadArrived(message.body.commitment, table))
    return bench.get_known(member)[0].status


def test_a_table_is_fetched_with_the_payload_and_both_are_held() -> None:
    bench = build_verified()
    member = get_trainer(bench)
    table = build_table(bench.state, member, 0)
    assert offer(bench, member, table) is PayloadStatus.HELD
    fetch = bench.get_all(act.FetchPayload)[-1]
    assert (fetch.table_bytes, fetch.is_report) == (len(table), False)
    assert bench.get_record().compute_held() >> member & 1


BAD_TABLES: dict[str, Any] = {
    "none": lambda table: b"",
    "a row short": lambda table: table[ROW_BYTES:],
    "a row more": lambda table: table + table[:ROW_BYTES],
    "cut": lambda table: table[:-1],
    "not a number": lambda table: struct.pack("<f", float("nan")) + table[4:],
    "infinite": lambda table: table[:-4] + struct.pack("<f", float("inf")),
    "too large": lambda table: table[:-4] + struct.pack("<f", 1e38),
}


@pytest.mark.parametrize("spoil", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_result_with_a_bad_table_is_not_held_and_the_log_says_why(spoil: Any) -> None:
    bench = build_verified()
    member = get_trainer(bench)
    assert offer(bench, member, spoil(build_table(bench.state, member, 0))) is PayloadStatus.REFUSED
    assert "work table" in get_refusals(bench)[-1]
    assert not bench.get_record().compute_held() >> member & 1


BAD_HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"work_root": ZERO32}, "work_root"),
    "no pieces": ({"piece_samples": 0}, "piece_samples"),
    "too large pieces": ({"piece_samples": 9}, "piece_samples"),
    "a report of who trains": ({"result_kind": ResultKind.AUDIT}, "owes no report"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_breaks_a_rule_of_verification_is_refused(changes: dict[str, Any], reason: str) -> None:
    bench = build_verified()
    bench.hear(bench.build_result(get_trainer(bench), **changes))
    assert reason in get_refusals(bench)[-1]


@pytest.mark.parametrize("changes", [{"work_root": build_hash("w")}, {"piece_samples": 1}, {"result_kind": 1}])
def test_a_run_without_verification_has_no_tables(changes: dict[str, Any]) -> None:
    bench = build_bench(4).start()
    bench.hear(bench.build_result(1, **({"result_kind": ResultKind.TRAINED} | changes)))
    assert len(get_refusals(bench)) == 1


# --- reports


def build_reporter() -> tuple[Bench, int]:
    """A round in which another member verifies."""
    for own in range(8):
        bench = build_verified(8, own)
        for _ in range(10):
            others = [m for m in bench.get_record().tasks if m != bench.index]
            if others:
                return bench, others[0]
            run_honest_round(bench)
    raise AssertionError("nobody was elected")


def test_a_verifier_has_shown_what_it_owes_with_its_report_and_not_with_finished_alone() -> None:
    bench, member = build_reporter()
    bench.hear(bench.build_finished(member))
    assert not bench.get_record().compute_held() >> member & 1
    bench.report(member)
    assert bench.get_record().compute_held() >> member & 1
    assert member not in bench.get_record().get_commitments(bench.get_record().compute_held())
    assert bench.get_all(act.FetchPayload)[-1].is_report


def test_a_verifier_that_had_nothing_to_audit_owes_its_finished_alone() -> None:
    bench, member = build_reporter()
    bench.get_record(bench.state.current.height - 1).results.clear()
    bench.hear(bench.build_finished(member))
    assert bench.get_record().compute_held() >> member & 1


BAD_REPORTS: dict[str, tuple[dict[str, Any], str]] = {
    "rows that are not its audits": ({"body": bytes(AUDIT_ROW_BYTES)}, "not among the verifier's audits"),
    "a table of another length": ({"table": encode_table([WorkRow(0.0, (0.0,) * 64)] * 2)}, "work table"),
}


@pytest.mark.parametrize(("changes", "reason"), BAD_REPORTS.values(), ids=BAD_REPORTS)
def test_a_report_that_breaks_a_rule_is_not_held(changes: dict[str, Any], reason: str) -> None:
    bench, member = build_reporter()
    built = bench.build_report(member, most=1, **changes)
    assert built is not None
    bench.hear(built[0])
    bench.feed(built[1])
    assert reason in get_refusals(bench)[-1]
    assert bench.get_known(member)[0].status is PayloadStatus.REFUSED


@pytest.mark.parametrize(
    "changes",
    [{"body_len": 0}, {"body_len": AUDIT_ROW_BYTES + 1}, {"body_len": 999 * AUDIT_ROW_BYTES}, {"piece_samples": 1},
     {"train_count": 1}, {"data_hash": build_hash("d")}, {"momentum_after": build_hash("m")},
     {"result_kind": ResultKind.TRAINED}],
)  # fmt: skip
def test_the_header_of_a_report_says_nothing_of_training(changes: dict[str, Any]) -> None:
    bench, member = build_reporter()
    built = bench.build_report(member, **changes)
    assert built is not None
    before = len(get_refusals(bench))
    bench.hear(built[0])
    assert len(get_refusals(bench)) == before + 1


# --- V6: calibration


def test_a_member_whose_calibration_row_is_off_is_named() -> None:
    for odd in range(1, 8):
        bench = build_verifier_with_odd(odd)
        if bench is not None:
            assert [event.member for event in bench.get_logs(types.ArithmeticOff)] == [odd]
            assert bench.engine.audits.tolerances.odd.keys() == {odd}
            return
    raise AssertionError("the odd member never trained in the first round")


def build_verifier_with_odd(odd: int) -> Bench | None:
    bench = build_verified(8)
    if odd not in bench.get_record().assignments:
        return None
    honest = build_table(bench.state, odd, 0)
    off = encode_table([WorkRow(1.0, sketch(b"other", 0, 0))])
    table = honest[:-ROW_BYTES] + off
    bench.tables[odd] = table
    bench.play()
    bench.wait(1)
    return bench


def test_a_member_that_is_off_as_far_as_cheats_are_leaves_the_epoch_and_says_why() -> None:
    bench = build_odd_trainer(own_is_odd=True)
    (left,) = bench.get_logs(types.LeftEpoch)
    assert left.cause is types.LeaveCause.UNFIT
    assert "computes wrong numbers" in left.reason
    assert len(bench.get_all(Withdraw)) == 1


def test_a_member_whose_row_few_have_confirmed_as_wrong_stays() -> None:
    bench = build_odd_trainer(12, own_is_odd=True, others=2)
    assert bench.get_logs(types.LeftEpoch) == []
    assert bench.get_logs(types.ArithmeticOff) != []


def test_the_round_in_which_an_unfit_member_left_is_excused_and_that_of_one_that_stays_is_not() -> None:
    bench = build_odd_trainer(own_is_odd=False)
    tolerances = bench.engine.audits.tolerances
    (odd,) = tolerances.unfit
    header = bench.get_known(odd)[0].header
    assert tolerances.excuses(header)
    question = _ask(bench.engine._x, bench.get_record(), odd, bench.get_known(odd)[0], lambda _pieces: 0)
    assert isinstance(question, Question)
    finding = Finding(question, Answer(1.0, (0.0,) * 64, (0.0,) * 64, -1.0), 9.0, AuditReason.GRADIENT)
    (charge,) = bench.engine.audits.verifier._order([finding])
    assert (charge.reason, charge.answer) == (AuditReason.UNCLEAR, None), "of which nobody keeps evidence"
    assert not tolerances.excuses(bench.get_known(next(m for m in bench.get_record().results if m != odd))[0].header)
    bench.close()
    if odd not in bench.get_record().assignments:  # it is a verifier there
        bench.run_round()
    bench.deliver(odd)
    assert not tolerances.excuses(header)


def build_odd_trainer(members: int = 8, *, own_is_odd: bool, others: int = 9) -> Bench:
    """The first round with an odd calibration row: the own one, or another's."""
    for own in range(members):
        bench = build_verified(members, own)
        trainers = list(bench.get_record().assignments)
        odd = own if own_is_odd else next(member for member in trainers if member != own)
        if own in trainers:
            row = encode_table([WorkRow(1.0, sketch(b"other", 0, 0))])
            bench.tables[odd] = build_table(bench.state, odd, 0)[:-ROW_BYTES] + row
            bench.train()
            bench.deliver(*[member for member in trainers if member != own][:others])
            bench.wait(1)
            return bench
    raise AssertionError("no member trains")


def test_the_tolerance_follows_the_fleet_and_never_exceeds_its_bound() -> None:
    bench = build_verifier()
    assert bench.engine.audits.tolerances.get(0, 1) == pytest.approx(1e-3)
    bench.engine.audits.tolerances._distances = {NumericClass.FP32: {0: 0.01, 1: 0.01, 2: 0.5}}
    assert bench.engine.audits.tolerances.get(0, 1) == pytest.approx(0.02)
    bench.engine.audits.tolerances._distances = {NumericClass.FP32: {0: 0.3}}
    assert bench.engine.audits.tolerances.get(0, 1) == 0.04
