"""What honest members of a verified run show of their work, made up from the samples alone."""

import struct
from collections.abc import Sequence
from typing import Any

from psyche.client.engine import actions as act
from psyche.core.committee.assignment import compute_assignments
from psyche.core.encoding.work import (
    SKETCH_VALUES,
    Values,
    WorkRow,
    choose_piece_samples,
    compute_pieces,
    count_shown_steps,
    encode_table,
)
from psyche.core.state.state import Coordinator
from psyche.core.state.timeline import get_round
from psyche.wire.crypto import blake3_hash, blob_id_of
from psyche.wire.trainer import AuditedPiece, AuditedTarget, AuditReply, Work

HONEST = 1.0


def sketch(seed: bytes, height: int, sample: int, scale: float = HONEST) -> Values:
    """The values under `seed` of the piece that begins with this sample, trained in round `height`."""
    drawn = blake3_hash(b"sketch", seed, height.to_bytes(4, "little"), sample.to_bytes(8, "little"))
    values = [((drawn[place % 32] + 7 * place) % 251 - 125) / 128 * scale for place in range(SKETCH_VALUES)]
    return tuple(values)


def get_first_sample(start: int, piece_samples: int, piece: int) -> int:
    """The sample that a piece begins with; each inner step of local steps, whose pieces have no size, has one."""
    return start + (piece_samples or 1) * piece


def accumulate(rows: Sequence[Values]) -> list[WorkRow]:
    """Rows of a table; multiples of 1/128, which float32 holds exactly."""
    total, found = (0.0,) * SKETCH_VALUES, []
    for row in rows:
        total = tuple(struct.unpack("f", struct.pack("f", a + b))[0] for a, b in zip(total, row, strict=True))
        found.append(WorkRow(1.0, total))
    return found


def build_table(state: Coordinator, member: int, height: int, scale: float = HONEST) -> bytes:
    """A trainer's table of a round; with another `scale` it is not of its samples."""
    round_ = get_round(state, height)
    assert round_ is not None, f"round {height} is not kept any more"
    start, end = compute_assignments(round_, state.config)[member]
    samples, optimizer = end - start + 1, state.model.optimizer
    size = choose_piece_samples(samples)
    pieces = compute_pieces(samples, size)
    if optimizer.inner_steps:
        done, merges = min(optimizer.inner_steps, samples), state.config.overlap and height > 0
        size, pieces = 0, count_shown_steps(optimizer, samples, done, merges=merges)
    firsts = [get_first_sample(start, size, piece) for piece in range(pieces)]
    rows = accumulate([sketch(round_.seed, height, first, scale) for first in firsts])
    if not height:
        rows.append(WorkRow(1.0, sketch(round_.seed, 0, round_.data_index)))
    return encode_table(rows)


def build_work(table: bytes) -> Work:
    return Work(table=table, momentum_before=blake3_hash(b"before"), momentum_after=blob_id_of(table))


def answer_audit(
    audit: act.Audit, *, scale: float = HONEST, agreement: float = 0.9, most: int = 99, **link: Any
) -> act.Audited:
    """What the trainer finds: the pieces as an honest machine computes them, at most so many batches."""
    targets = [
        AuditedTarget(
            pieces=tuple(_recompute(audit, case, piece, scale) for piece in case.pieces), agreement=agreement, **link
        )
        for case in audit.cases
    ]
    reply = AuditReply(targets=tuple(targets[:most]), seconds=0.1, cancelled=most < len(targets))
    return act.Audited(audit, reply)


def _recompute(audit: act.Audit, case: act.Case, piece: int, scale: float) -> AuditedPiece:
    first = get_first_sample(case.start, case.piece_samples, piece)
    values = tuple(sketch(seed, case.height, first, scale) for seed in audit.seeds)
    return AuditedPiece(piece=piece, loss=1.0, values=values)
