"""What members show of their work beside a result: tables, and reports of audits (V2, V6, V9)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from psyche.core.committee.audits import AuditTask
from psyche.core.encoding.header import NumericClass, ResultHeader, ResultKind
from psyche.core.encoding.work import (
    AUDIT_ROW_BYTES,
    ROW_BYTES,
    AuditRow,
    Values,
    WorkRow,
    check_report,
    compute_difference,
    compute_pieces,
    count_shown_steps,
    decode_report,
    decode_table,
)
from psyche.core.state.enums import MUON
from psyche.core.state.state import ZERO32, Coordinator, OptimizerKind
from psyche.errors import WireError

FIRST_STEP_IN_BF16: Final = 3  # inner step from which bfloat16 is close enough among machines


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
    return state.config.verification_percent > 0 and state.model.optimizer.is_replayable


def has_local_steps(state: Coordinator) -> bool:
    return state.model.optimizer.kind is OptimizerKind.LOCAL_STEPS


def count_pieces(header: ResultHeader, state: Coordinator) -> int:
    """The pieces of a result, or the rows of a report: its table has a row for each.

    Raises:
        WireError: its pieces are too large for its batch.
    """
    samples = header.batch_end - header.batch_start + 1
    if header.result_kind is ResultKind.AUDIT:
        return header.body_len // AUDIT_ROW_BYTES
    if has_local_steps(state):
        if header.piece_samples:
            raise WireError(f"piece_samples: {header.piece_samples}, must be 0: pieces are inner steps")
        merges = state.config.overlap and header.height > 0
        return count_shown_steps(state.model.optimizer, samples, header.inner_steps, merges=merges)
    return compute_pieces(samples, header.piece_samples)


def find_pieces(header: ResultHeader, state: Coordinator) -> range:
    """Those of its pieces, or rows, that another machine computes closely enough to judge them (V7).

    In bfloat16 Adam's first steps, which are signs, and the steps of Muon differ among honest machines.
    """
    count = count_pieces(header, state)
    is_trained_in_bf16 = header.result_kind is ResultKind.TRAINED and header.numeric_class is NumericClass.BF16
    if not is_trained_in_bf16 or not has_local_steps(state):
        return range(count)
    has_muon = state.model.optimizer.inner_optimizer in MUON
    return range(0) if has_muon else range(FIRST_STEP_IN_BF16, count)


def is_calibrated(header: ResultHeader) -> bool:
    return header.height == 0 and header.result_kind is ResultKind.TRAINED


def get_table_bytes(header: ResultHeader, state: Coordinator) -> int:
    """The length of a result's table, 0 if it has none; its header has been checked."""
    return (count_pieces(header, state) + is_calibrated(header)) * ROW_BYTES if header.work_root != ZERO32 else 0


def find_slip(header: ResultHeader, audits: int, state: Coordinator) -> str:
    """The field in which a header breaks the rules of verification; empty if it breaks none (R3, V1, V2, V9).

    `audits` are those that its member has in this round.
    """
    if not is_verified(state):
        is_plain = header.result_kind is ResultKind.TRAINED and header.work_root == ZERO32 and not header.piece_samples
        return "" if is_plain else "result_kind, work_root or piece_samples: this run has no verification"
    if header.work_root == ZERO32:
        return "work_root: is zero, but this run is verified"
    if header.result_kind is ResultKind.AUDIT:
        return _find_slip_of_report(header, audits)
    try:
        count_pieces(header, state)
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
    header: ResultHeader, state: Coordinator, table: bytes, body: bytes, tasks: Sequence[AuditTask],
    find_audited: Callable[[AuditTask], range | None],
) -> Work:  # fmt: skip
    """Read a result's table, and of a verifier the report `body`, whose audits must be among its `tasks`.

    Raises:
        WireError: it breaks a rule of V2 or V9.
    """
    if header.result_kind is ResultKind.AUDIT:
        report = decode_report(body)
        check_report(report, tasks, find_audited)
        return Work(table, decode_table(table, len(report)), report)
    has_calibration = is_calibrated(header)
    rows = decode_table(table, count_pieces(header, state), is_calibrated=has_calibration)
    return Work(table, rows, calibration=rows[-1].values if has_calibration else None)
