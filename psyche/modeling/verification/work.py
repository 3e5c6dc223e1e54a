"""The work table of a batch, made while it trains: a row after each piece, and one that calibrates (V2, V6)."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final, NoReturn, Self

import numpy as np
from torch import Tensor

from psyche.core.encoding.header import NumericClass
from psyche.core.encoding.work import SKETCH_VALUES, WorkRow, encode_table
from psyche.modeling.device import get_numeric_class
from psyche.modeling.model import get_shapes
from psyche.modeling.trainer.batch import PieceLog, compute_gradients, count_predicted, decode_tokens
from psyche.modeling.trainer.replica import Replica
from psyche.modeling.verification.samples import SampleSketches
from psyche.modeling.verification.sketch import Sketch, TakenRows
from psyche.wire.trainer import TrainRequest, WorkRequest

# Of the gradient's sketch; within it the samples' sketches add up to it.
TOLERANCES: Final = {NumericClass.FP32: 1e-3, NumericClass.BF16: 2e-2}


class MixedSamples(Exception):
    """What is known of the samples does not add up to the gradient: pieces are computed one by one from now on."""


class WorkLog(PieceLog):
    """The rows of one batch. A piece adds its gradient to those before it; only the calibration stands for itself."""

    def __init__(self, request: WorkRequest, replica: Replica) -> None:
        self.piece_samples = request.piece_samples
        self._calibration, self._replica = request.calibration, replica
        self._sketch = Sketch(request.seed, replica.device)
        self._rows: list[WorkRow] = []
        self._watched: SampleSketches | None = None

    def calibrate(self, request: TrainRequest, vocab_size: int, check: Callable[[], None]) -> None:
        """Add the row that calibrates, in an epoch's first round."""
        if self._calibration:
            length, has_labels = request.sequence_length, request.has_labels
            rows = decode_tokens(self._calibration, 1, length, vocab_size, has_labels=has_labels)
            compute_gradients(
                self._replica.model, self._replica.parameters, rows, micro_batch_size=1, device=self._replica.device,
                clip=None, check=check, pieces=self, predicted=max(1, count_predicted(rows)),
            )  # fmt: skip

    def begin(self) -> Self:
        """Begin the batch, perhaps anew."""
        self._rows, self._watched = [], None
        return self

    def count_at_once(self, micro_batch_size: int) -> int:
        if not self.piece_samples or self._replica.layers is None:
            return 1
        return max(1, micro_batch_size // self.piece_samples)

    @cached_property
    def _taken(self) -> dict[str, TakenRows]:
        return self._sketch.find_rows(get_shapes(self._replica.parameters))

    def watch(self, samples: int) -> AbstractContextManager[object]:
        layers = self._replica.layers
        assert layers is not None, "else only one piece at a time"
        self._watched = SampleSketches(self._sketch, layers, self._taken, samples, self._replica.device)
        return self._watched.watch()

    def add(self, losses: Sequence[float], gradients: Mapping[str, Tensor]) -> None:
        """Note the pieces of these samples, and the gradient of the batch up to them.

        Raises:
            MixedSamples: what is known of each piece does not make up the gradient; the batch begins anew, without.
        """
        after = self._sketch.compute(gradients)
        if self._watched is None:
            self._rows.append(WorkRow(math.fsum(losses), after))
            return
        before = np.array(self._rows[-1].values if self._rows else (0.0,) * SKETCH_VALUES)
        parts, self._watched = self._watched.read(), None
        if parts is None:
            self._give_up()
        sums = before + np.cumsum([part.sum(0).tolist() for part in parts.split(self.piece_samples)], 0)
        tolerance = TOLERANCES[get_numeric_class(self._replica.device)]
        if np.linalg.norm(sums[-1] - after) > tolerance * np.linalg.norm(after - before):
            self._give_up()
        sums[-1] = after
        of_pieces = (losses[n : n + self.piece_samples] for n in range(0, len(losses), self.piece_samples))
        self._rows += [WorkRow(math.fsum(loss), tuple(row)) for loss, row in zip(of_pieces, sums.tolist(), strict=True)]

    def _give_up(self) -> NoReturn:
        self._replica.layers = None
        raise MixedSamples

    def finish(self, request: TrainRequest, vocab_size: int, check: Callable[[], None]) -> bytes:
        """The table; in an epoch's first round with its calibration row.

        Raises:
            WireError: a number is not finite, or too large.
        """
        self.calibrate(request, vocab_size, check)
        return encode_table(self._rows)


class MoveLog(WorkLog):
    """The rows of a round of local steps: what they have moved so far, up to the merge of what others sent (LS5)."""

    def __init__(self, request: WorkRequest, replica: Replica) -> None:
        super().__init__(request, replica)
        self.piece_samples = 0  # the calibration is one piece
        self.is_closed = False
        self._start = clone(replica.parameters)

    def note(self, loss: float) -> None:
        """One more inner step is done."""
        if not self.is_closed:
            self.add([loss], subtract(self._start, self._replica.parameters))

    def encode(self, count: int) -> bytes:
        """The table, at whose end the calibration is; it was computed first, at the round's weights.

        Of so many inner steps: those before the merge that had no labels moved nothing.
        """
        first = len(self._rows) and bool(self._calibration)
        steps = self._rows[first:]
        last = steps[-1].values if steps else (0.0,) * SKETCH_VALUES
        return encode_table([*steps, *[WorkRow(0.0, last)] * (count - len(steps)), *self._rows[:first]])


def clone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in tensors.items()}


def subtract(start: Mapping[str, Tensor], end: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one - end[name].detach() for name, one in start.items()}
