"""V1, V2, V9: pieces, tables of work, and reports; peers may send anything in their place."""

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.committee.audits import AuditTask
from psyche.core.encoding.work import (
    AUDIT_ROW_BYTES,
    ROW_BYTES,
    AuditRow,
    WorkRow,
    check_report,
    choose_piece_samples,
    compute_difference,
    compute_piece_samples,
    compute_pieces,
    count_shown_steps,
    decode_report,
    decode_table,
    encode_report,
    encode_table,
)
from psyche.core.state.state import Optimizer
from psyche.errors import WireError

VALUES = tuple(float(number) for number in range(64))
BAD_NUMBERS = (math.nan, math.inf, -math.inf, 1e38, 2.0**60 * 1.0001)
TABLE = [WorkRow(2.5, VALUES), WorkRow(1.5, tuple(value + 1 for value in VALUES)), WorkRow(0.0, VALUES)]
REPORT = [AuditRow(7, 3, False, 0.25, VALUES), AuditRow(255, 65_535, True, 0.0, VALUES)]


@given(st.integers(1, 65_535))
def test_v1_a_batch_has_at_least_eight_pieces_or_one_for_each_sample(samples: int) -> None:
    largest = compute_piece_samples(samples)
    assert compute_pieces(samples, largest) >= min(8, samples)
    assert -(-samples // (largest + 1)) < 8
    assert compute_pieces(samples, choose_piece_samples(samples)) >= min(16, samples)
    for bad in (0, largest + 1):
        with pytest.raises(WireError, match=r"piece_samples: .* must be 1 to "):
            compute_pieces(samples, bad)


@pytest.mark.parametrize(
    ("samples", "largest", "pieces"), [(1, 1, 1), (7, 1, 7), (8, 1, 8), (15, 2, 8), (16, 2, 8), (17, 2, 9), (64, 9, 8)]
)
def test_v1_the_pieces_of_common_batches(samples: int, largest: int, pieces: int) -> None:
    assert (compute_piece_samples(samples), compute_pieces(samples, largest)) == (largest, pieces)


@pytest.mark.parametrize(
    ("samples", "done", "merges", "rows"),
    [(8, 8, False, 8), (8, 8, True, 5), (8, 2, True, 2), (9, 8, True, 5), (4, 4, False, 4), (4, 4, True, 2),
     (1, 1, True, 1), (64, 65_535, True, 5), (8, 0, False, 1)],
)  # fmt: skip
def test_v2_local_steps_show_the_inner_steps_before_the_merge_and_at_least_one_row(
    samples: int, done: int, merges: bool, rows: int
) -> None:
    assert count_shown_steps(Optimizer(inner_steps=8, merge_step=5), samples, done, merges=merges) == rows
    assert count_shown_steps(Optimizer(inner_steps=8), samples, done, merges=True) == max(1, min(done, 8, samples))


def test_v2_a_table_has_260_bytes_a_row_and_reads_back() -> None:
    raw = encode_table(TABLE)
    assert len(raw) == 3 * 260
    assert raw[:8] == struct.pack("<ff", 2.5, 0.0)
    assert decode_table(raw, 3) == tuple(TABLE)
    assert decode_table(raw, 2, is_calibrated=True) == tuple(TABLE)


def test_v2_a_piece_is_what_its_row_adds() -> None:
    assert compute_difference(TABLE, 0) == VALUES
    assert compute_difference(TABLE, 1) == (1.0,) * 64
    assert compute_difference(TABLE, 2) == (-1.0,) * 64


@pytest.mark.parametrize(
    ("pieces", "length"), [(3, 2 * 260), (2, 3 * 260), (3, 779), (3, 781), (0, 0), (65_536, 65_536 * 260), (-1, 0)]
)
def test_v2_a_table_of_another_length_is_refused(pieces: int, length: int) -> None:
    with pytest.raises(WireError, match=r"work table: .* bytes, must be 260 for each of"):
        decode_table(bytes(length), pieces)


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("place", [0, 1, 64, 65, 129])
def test_v2_a_number_that_is_not_finite_or_too_large_is_refused(number: float, place: int) -> None:
    raw = bytearray(encode_table(TABLE))
    raw[4 * place : 4 * place + 4] = struct.pack("<f", number)
    with pytest.raises(WireError, match=f"work table: row {place // 65} has a number that is not finite"):
        decode_table(bytes(raw), 3)


@pytest.mark.parametrize("values", [(math.nan,) * 64, (1e300,) * 64, VALUES[:63]])
def test_v2_nobody_encodes_what_nobody_accepts(values: tuple[float, ...]) -> None:
    with pytest.raises(WireError, match="work table: row 1"):
        encode_table([TABLE[0], WorkRow(0.0, values)])


def test_v9_a_report_has_268_bytes_an_audit_and_reads_back() -> None:
    raw = encode_report(REPORT)
    assert len(raw) == 2 * 268
    assert raw[:12] == bytes([7, 0, 3, 0, 0, 0, 0, 0, 0, 0, 128, 62])
    assert decode_report(raw) == tuple(REPORT)


@pytest.mark.parametrize("length", [0, 1, 267, 269, 65_536 * 268])
def test_v9_a_report_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(WireError, match=r"report: .* bytes, must be 268 for each of 1 to 65,535 rows"):
        decode_report(bytes(length))


def spoil(offset: int, raw: bytes) -> bytes:
    good = encode_report(REPORT)
    at = AUDIT_ROW_BYTES + offset
    return good[:at] + raw + good[at + len(raw) :]


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (spoil(0, b"\0\1"), "row 1 names no member"),
        (spoil(4, b"\2"), "no kind of work"),
        (spoil(5, b"\1"), "a pad is not zero"),
        (spoil(8, struct.pack("<f", -0.5)), "row 1 has a distance below 0"),
        *((spoil(at, struct.pack("<f", bad)), "row 1 has a number") for bad in BAD_NUMBERS for at in (8, 264)),
    ],
)
def test_v9_a_report_that_nobody_could_write_is_refused(raw: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=f"report: .*{rule}"):
        decode_report(raw)


@pytest.mark.parametrize("row", [AuditRow(65_536, 0, False, 0.0, VALUES), AuditRow(1, 1, False, math.nan, VALUES)])
def test_v9_a_row_that_does_not_fit_is_not_written(row: AuditRow) -> None:
    with pytest.raises(WireError, match="report: row 0"):
        encode_report([row])


TASKS = [AuditTask(4, 7, False, 11), AuditTask(4, 2, True, 5), AuditTask(4, 7, False, 13)]


def build_rows(*places: tuple[int, int, bool]) -> list[AuditRow]:
    return [AuditRow(*place, 0.0, VALUES) for place in places]


@pytest.mark.parametrize(
    "rows",
    [
        [(7, 3, False), (2, 5, True), (7, 5, False)],
        [(7, 5, False)],
        [(2, 5, True)],
        [],
    ],
)
def test_v9_a_report_may_leave_audits_out(rows: list[tuple[int, int, bool]]) -> None:
    check_report(build_rows(*rows), TASKS, lambda task: range(8))


@pytest.mark.parametrize(
    "rows",
    [
        [(7, 4, False)],  # another piece
        [(7, 3, True)],  # another kind of work
        [(3, 3, False)],  # another member
        [(7, 5, False), (2, 5, True)],  # out of order
        [(7, 3, False), (7, 3, False)],  # twice
    ],
)
def test_v9_a_report_of_other_audits_is_refused(rows: list[tuple[int, int, bool]]) -> None:
    find: Callable[[AuditTask], range] = lambda task: range(8)  # noqa: E731
    with pytest.raises(WireError, match="not among the verifier's audits"):
        check_report(build_rows(*rows), TASKS, find)


def test_v9_where_the_pieces_of_a_target_are_not_known_any_piece_passes() -> None:
    check_report(build_rows((7, 999, False)), TASKS, lambda task: None)


def test_the_lengths_are_those_of_the_page() -> None:
    assert (ROW_BYTES, AUDIT_ROW_BYTES) == (260, 268)
