"""What members show of their work beside a result: tables, and reports of audits (V2, V6, V9)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from psyche.core.committee.audits import AuditTask
from psyche.core.encoding.header import ResultHeader, ResultKind
from psyche.core.encoding.work import (
    AUDIT_ROW_BYTES,
    ROW_BYTES,
    AuditRow,
    Values,
    WorkRow,
    check_report,
    compute_difference,
    compute_pieces,
    decode_report,
    decode_table,
)
from psyche.core.state.state import ZERO32, Coordinator, OptimizerKind
from psyche.errors import WireError


@dataclass(frozen=True, slots=True)
class Work:
    """A checked table, and the rows of a report if it belongs to one."""

    raw: bytes
    table: tuple[WorkRow, ...]
    report: tuple[AuditRow, ...] = ()
    calibration: Values | None = None

    def get_claim(self, piece: int) -> Values:
        """What its member says that this piece, or this row of its report, adds."""
        return compute_difference(self.table, piece)


def is_verified(state: Coordinator) -> bool:
    """Whether results of this run come with tables."""
    return state.config.verification_percent > 0 and state.model.optimizer.kind is OptimizerKind.DISTRO


def count_pieces(header: ResultHeader) -> int:
    """The pieces of a result, or the rows of a report: its table has a row for each.

    Raises:
        WireError: its pieces are too large for its batch.
    """
    if header.result_kind is ResultKind.AUDIT:
        return header.body_len // AUDIT_ROW_BYTES
    return compute_pieces(header.batch_end - header.batch_start + 1, header.piece_samples)


def is_calibrated(header: ResultHeader) -> bool:
    return header.height == 0 and header.result_kind is ResultKind.TRAINED


def get_table_bytes(header: ResultHeader) -> int:
    """The length of a result's table, 0 if it has none; its header has been checked."""
    return (count_pieces(header) + is_calibrated(header)) * ROW_BYTES if header.work_root != ZERO32 else 0


def find_slip(header: ResultHeader, audits: int, *, is_shown: bool) -> str:
    """The field in which a header breaks the rules of verification; empty if it breaks none (R3, V1, V2, V9).

    `audits` are those that its member has in this round, `is_shown`: whether results of this run come with tables.
    """
    if not is_shown:
        is_plain = header.result_kind is ResultKind.TRAINED and header.work_root == ZERO32 and not header.piece_samples
        return "" if is_plain else "result_kind, work_root or piece_samples: this run has no verification"
    if header.work_root == ZERO32:
        return "work_root: is zero, but this run is verified"
    if header.result_kind is ResultKind.AUDIT:
        return _find_slip_of_report(header, audits)
    try:
        count_pieces(header)
    except WireError as error:
        return str(error)
    return ""


def _find_slip_of_report(header: ResultHeader, audits: int) -> str:
    rows, rest = divmod(header.body_len, AUDIT_ROW_BYTES)
    if rest or not 1 <= rows <= audits:
        return f"body_len: {header.body_len}, must be {AUDIT_ROW_BYTES} for each of 1 to {audits} audits"
    roots = (header.momentum_before, header.momentum_after, header.lookahead_root, header.prev_commitment)
    if {header.data_hash, *roots} != {ZERO32} or header.piece_samples or header.train_count:
        return "data_hash, prev_commitment, roots, piece_samples and train_count: must be zero in a report"
    return ""


def read_work(
    header: ResultHeader, table: bytes, body: bytes, tasks: Sequence[AuditTask],
    find_pieces: Callable[[AuditTask], int | None],
) -> Work:  # fmt: skip
    """Read a result's table, and of a verifier the report `body`, whose audits must be among its `tasks`.

    Raises:
        WireError: it breaks a rule of V2 or V9.
    """
    if header.result_kind is ResultKind.AUDIT:
        report = decode_report(body)
        check_report(report, tasks, find_pieces)
        return Work(table, decode_table(table, len(report)), report)
    has_calibration = is_calibrated(header)
    rows = decode_table(table, count_pieces(header), is_calibrated=has_calibration)
    return Work(table, rows, calibration=rows[-1].values if has_calibration else None)
