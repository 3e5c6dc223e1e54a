"""Tables of work and reports of audits: what trainers and verifiers commit to (`docs/protocol-reference.md`, V1 to V9).

A table has a row per piece: the piece's loss, and the sketch of the gradient accumulated so far. The difference of two
rows is what one piece adds. Tables and reports come from peers: lengths are checked before anything is read, and every
number is finite and small enough that no sum of squares overflows.
"""

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from psyche.core.committee.audits import AuditTask
from psyche.core.state.limits import MAX_CLIENTS, U16_MAX
from psyche.core.state.settings import Optimizer
from psyche.errors import WireError

SKETCH_VALUES: Final = 64
LEAST_PIECES: Final = 8
WANTED_PIECES: Final = 16
MAX_MAGNITUDE: Final = 2.0**60  # sums of 64 squares of differences stay far within float32
Values = tuple[float, ...]

_ROW: Final = struct.Struct(f"<f{SKETCH_VALUES}f")
_AUDIT: Final = struct.Struct(f"<HHB3xf{SKETCH_VALUES}f")
ROW_BYTES: Final = _ROW.size
AUDIT_ROW_BYTES: Final = _AUDIT.size


class WorkRow(NamedTuple):
    """The summed loss of a piece, and the sketch of the gradient of all pieces up to it."""

    loss: float
    values: Values


class AuditRow(NamedTuple):
    """One audit of a report: whose piece, how far its row is from the verifier's own values, and these."""

    target: int
    piece: int
    is_report: bool  # a row of the target's report
    distance: float
    values: Values


def compute_piece_samples(samples: int) -> int:
    """The most samples of a piece that still give at least min(8, samples) pieces (V1)."""
    return max(1, (samples - 1) // (LEAST_PIECES - 1))


def choose_piece_samples(samples: int) -> int:
    """The samples of a piece that give at least min(16, samples) pieces.

    As many audits fit into the time of a round, so who fakes half of its pieces is found within 20 rounds.
    """
    return max(1, (samples - 1) // (WANTED_PIECES - 1))


def compute_pieces(samples: int, piece_samples: int) -> int:
    """The number of pieces of so many samples (V1).

    Raises:
        WireError: the pieces are too large for the batch.
    """
    if not 1 <= piece_samples <= compute_piece_samples(samples):
        most = compute_piece_samples(samples)
        raise WireError(f"piece_samples: {piece_samples} of a batch of {samples}, must be 1 to {most} (V1)")
    return -(-samples // piece_samples)


def count_shown_steps(optimizer: Optimizer, samples: int, done: int, *, merges: bool) -> int:
    """The rows of a table of local steps: the inner steps before what others sent was merged, at least one (V2)."""
    before = optimizer.merge_step if merges and optimizer.merge_step else optimizer.inner_steps
    return max(1, min(done, before, before * samples // max(1, optimizer.inner_steps)))


def encode_table(rows: Sequence[WorkRow]) -> bytes:
    """The bytes of a table; their BLAKE3 hash is `work_root`."""
    return b"".join(_pack(_ROW, "work table", number, row.loss, *row.values) for number, row in enumerate(rows))


def decode_table(raw: bytes, pieces: int, *, is_calibrated: bool = False) -> tuple[WorkRow, ...]:
    """Read the table of so many pieces; one with a calibration row has it at the end (V2, V6).

    Raises:
        WireError: the length is another one, or a number is not finite or too large.
    """
    rows = pieces + is_calibrated
    if not 1 <= pieces <= U16_MAX or len(raw) != rows * ROW_BYTES:
        raise WireError(f"work table: {len(raw)} bytes, must be {ROW_BYTES} for each of {rows} rows (V2)")
    return tuple(
        WorkRow(loss, tuple(_check("work table", number, (loss, *values))[1:]))
        for number, (loss, *values) in enumerate(_ROW.iter_unpack(raw))
    )


def compute_difference(table: Sequence[WorkRow], piece: int) -> Values:
    """What one piece adds to the sketch."""
    before = table[piece - 1].values if piece else (0.0,) * SKETCH_VALUES
    return tuple(after - sooner for after, sooner in zip(table[piece].values, before, strict=True))


def encode_report(rows: Sequence[AuditRow]) -> bytes:
    """The body of a result of kind AUDIT (V9)."""
    return b"".join(
        _pack(_AUDIT, "report", number, row.distance, *row.values, head=(row.target, row.piece, row.is_report))
        for number, row in enumerate(rows)
    )


def decode_report(raw: bytes) -> tuple[AuditRow, ...]:
    """Read a report (V9).

    Raises:
        WireError: the length is no number of rows from 1 to 65,535, a row names no member, a pad is not zero, or a
            number is not finite, too large, or a distance below zero.
    """
    count, rest = divmod(len(raw), AUDIT_ROW_BYTES)
    if rest or not 1 <= count <= U16_MAX:
        raise WireError(f"report: {len(raw)} bytes, must be {AUDIT_ROW_BYTES} for each of 1 to {U16_MAX:,} rows (V9)")
    rows: list[AuditRow] = []
    for number, (target, piece, is_report, *numbers) in enumerate(_AUDIT.iter_unpack(raw)):
        if target >= MAX_CLIENTS or is_report > 1:
            raise WireError(f"report: row {number} names no member, or no kind of work (V9)")
        distance, *values = _check("report", number, numbers)
        if distance < 0:
            raise WireError(f"report: row {number} has a distance below 0 (V9)")
        rows.append(AuditRow(target, piece, bool(is_report), distance, tuple(values)))
    if encode_report(rows) != raw:
        raise WireError("report: a pad is not zero (V9)")
    return tuple(rows)


def check_report(
    rows: Iterable[AuditRow], tasks: Iterable[AuditTask], find_pieces: Callable[[AuditTask], range | None]
) -> None:
    """Check that a report has audits of its verifier's list alone, each once and in the list's order (V7, V9).

    An audit may be missing: the target's samples may be gone. `find_pieces` says which pieces (or rows) of a task's
    target may be audited; None where that is not known.

    Raises:
        WireError: a row is not the next one of the list.
    """
    left = iter(tasks)
    for number, row in enumerate(rows):
        if not any(_is_of(row, task, find_pieces(task)) for task in left):
            raise WireError(f"report: row {number} is not among the verifier's audits, or out of their order (V7)")


def _is_of(row: AuditRow, task: AuditTask, pieces: range | None) -> bool:
    same = (row.target, row.is_report) == (task.target, task.is_report)
    return same and (pieces is None or row.piece == task.get_piece(pieces))


def _pack(form: struct.Struct, what: str, number: int, *values: float, head: tuple[int, ...] = ()) -> bytes:
    try:
        return form.pack(*head, *_check(what, number, values))
    except (struct.error, OverflowError) as error:
        raise WireError(f"{what}: row {number}: {error}") from error


def _check(what: str, number: int, values: Sequence[float]) -> Sequence[float]:
    # the sum of a NaN is one
    if not math.isfinite(sum(values)) or max(values) > MAX_MAGNITUDE or min(values) < -MAX_MAGNITUDE:
        raise WireError(f"{what}: row {number} has a number that is not finite or above 2^60")
    return values
