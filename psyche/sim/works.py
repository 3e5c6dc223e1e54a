"""Work tables of simulated trainers: 64 values for each piece that follow from weights, tokens and look-ahead alone.

Of local steps a piece is an inner step; its weights follow from the inner batches before it. Machines differ by noise
of a given size: E between what one machine says and what is right (V10).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from psyche.core.encoding.plan import TransformPlan
from psyche.core.encoding.work import SKETCH_VALUES, WorkRow, compute_pieces, count_shown_steps, encode_table
from psyche.core.state.state import ZERO32, Optimizer
from psyche.errors import TrainerError
from psyche.modeling.verification.openings import MomentumTree, draw_chunks
from psyche.wire.crypto import blake3_hash
from psyche.wire.trainer import AuditedPiece, AuditTarget, OpenRequest, TrainRequest, Work

KEPT: Final = 8  # rounds whose weights an audit may need
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Piece:
    """What the gradient of a piece follows from."""

    weights: bytes  # their hash
    tokens: bytes
    last: bytes  # the payload that was looked ahead with

    def sketch(self, seed: bytes) -> Floats:
        raw = blake3(self.weights + blake3_hash(self.tokens, self.last) + seed).digest(length=4 * SKETCH_VALUES)
        return (np.frombuffer(raw, dtype="<i4") / 2.0**31).astype(np.float32)


Distort = Callable[[int, list[Piece]], list[Piece]]  # a round and its honest pieces: those that are shown


def cut(tokens: bytes, samples: int, piece_samples: int, inner_steps: int) -> list[bytes]:
    """The tokens of each piece of a batch."""
    row = len(tokens) // samples
    if inner_steps:
        ends = [row * (step * samples // inner_steps) for step in range(inner_steps + 1)]
    else:
        ends = [row * min(piece_samples * i, samples) for i in range(compute_pieces(samples, piece_samples) + 1)]
    return [tokens[start:end] for start, end in pairwise(ends) if start < end]


@dataclass(slots=True, eq=False)
class SimWorks:
    """The tables of one trainer, and what it finds of others."""

    plan: TransformPlan
    optimizer: Optimizer
    rng: random.Random
    noise: float = 0.0
    distort: Distort | None = None  # set by a dishonest owner
    distort_calibration: Callable[[Piece], Piece] | None = None  # likewise
    _momenta: list[tuple[int, list[bytes]]] = field(default_factory=list)  # round and chunks of the last two
    _weights: dict[int, bytes] = field(default_factory=dict)  # height -> hash of the weights of that round

    def lose(self) -> None:
        self._weights.clear()
        self._momenta.clear()

    def note_weights(self, height: int, weights: Floats) -> None:
        self._weights[height] = blake3_hash(weights.tobytes())
        self._weights = {h: kept for h, kept in self._weights.items() if height - KEPT < h <= height}

    def has(self, height: int) -> bool:
        return height in self._weights

    def get_weights(self, height: int) -> bytes:
        return self._weights.get(height, ZERO32)

    def show(self, request: TrainRequest, inner_steps: int) -> Work | None:
        """The work of a batch, of which so many inner steps were done."""
        wanted = request.work
        if wanted is None:
            return None
        last = request.own[0].payload if request.own else b""
        here = self.get_weights(request.height)
        due = self.optimizer.inner_steps
        pieces = self._build_pieces(request.height, request, wanted.piece_samples, last, due)
        if due:
            merges = request.in_flight and request.height > 0
            pieces = pieces[: count_shown_steps(self.optimizer, request.samples, inner_steps, merges=merges)]
        shown = pieces if self.distort is None else self.distort(request.height, pieces)
        rows = self._accumulate([self._blur(piece.sketch(wanted.seed)) for piece in shown])
        if wanted.calibration:
            first = Piece(here, wanted.calibration, b"")
            first = first if self.distort_calibration is None else self.distort_calibration(first)
            rows.append(_get_row(self._blur(first.sketch(wanted.seed))))
        self._momenta = [*self._momenta[-1:], (request.height, self._draw_chunks(request.tokens))]
        before, after = (MomentumTree(self.plan, chunks).root for _, chunks in (self._momenta * 2)[:2])
        before = ZERO32 if len(self._momenta) == 1 else before
        return Work(table=encode_table(rows), momentum_before=before, momentum_after=after)

    def _draw_chunks(self, tokens: bytes) -> list[bytes]:
        """Chunks of a momentum that nothing but the tokens makes."""
        sizes = [group.chunks * group.area * 4 for group in self.plan.groups]
        return [blake3(tokens + bytes([number])).digest(length=size) for number, size in enumerate(sizes)]

    def open(self, request: OpenRequest) -> bytes:
        if not self._momenta or self._momenta[-1][0] != request.height:
            raise TrainerError(f"open: the momentum of round {request.height} is no longer here")
        places = draw_chunks(self.plan, request.seed, request.opened_chunks)
        return b"".join(MomentumTree(self.plan, chunks).open(places, chunks) for _, chunks in self._momenta)

    def recompute(self, height: int, target: AuditTarget, piece: int, seeds: Sequence[bytes]) -> AuditedPiece:
        inner_steps = 0 if target.local is None else self.optimizer.inner_steps
        honest = self._build_pieces(height, target, target.piece_samples, target.last_body, inner_steps)[piece]
        values = tuple(_get_row(self._blur(honest.sketch(seed))).values for seed in seeds)
        return AuditedPiece(piece=piece, loss=2.0, values=values)

    def _build_pieces(
        self, height: int, batch: TrainRequest | AuditTarget, piece_samples: int, last: bytes, inner_steps: int
    ) -> list[Piece]:
        here = self.get_weights(height)
        parts = cut(batch.tokens, batch.samples, piece_samples, inner_steps)
        moved = [blake3_hash(here, *parts[:step]) if inner_steps else here for step in range(len(parts))]
        return [Piece(weights, part, last) for weights, part in zip(moved, parts, strict=True)]

    def _blur(self, values: Floats) -> Floats:
        if not self.noise:
            return values
        drawn = np.array([self.rng.gauss(0, 1) for _ in range(SKETCH_VALUES)], dtype=np.float32)
        scale = self.noise * float(np.linalg.norm(values)) / float(np.linalg.norm(drawn))
        return (values + np.float32(scale) * drawn).astype(np.float32)

    @staticmethod
    def _accumulate(pieces: Sequence[Floats]) -> list[WorkRow]:
        total = np.zeros(SKETCH_VALUES, dtype=np.float32)
        rows: list[WorkRow] = []
        for values in pieces:
            total = (total + values).astype(np.float32)
            rows.append(_get_row(total))
        return rows


def _get_row(values: Floats) -> WorkRow:
    return WorkRow(2.0, tuple(float(value) for value in values))


def fake(piece: Piece, number: int) -> Piece:
    """A piece that was not computed."""
    return replace(piece, tokens=b"", last=number.to_bytes(8, "little"))
