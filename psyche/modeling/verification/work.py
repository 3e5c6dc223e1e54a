"""The work table of a batch, made while it trains: a row after each piece, and one that calibrates (V2, V6)."""

from collections.abc import Callable, Mapping

from torch import Tensor

from psyche.core.encoding.work import SKETCH_VALUES, WorkRow, encode_table
from psyche.modeling.trainer.batch import compute_gradients, count_predicted, decode_tokens
from psyche.modeling.trainer.replica import Replica
from psyche.modeling.verification.sketch import Sketch
from psyche.wire.trainer import TrainRequest, WorkRequest


class WorkLog:
    """The rows of one batch. A piece adds its gradient to those before it; only the calibration stands for itself."""

    def __init__(self, request: WorkRequest, replica: Replica) -> None:
        self.piece_samples = request.piece_samples
        self._calibration, self._replica = request.calibration, replica
        self._sketch = Sketch(request.seed, replica.device)
        self._rows: list[WorkRow] = []

    def calibrate(self, request: TrainRequest, vocab_size: int, check: Callable[[], None]) -> None:
        """Add the row that calibrates, in an epoch's first round."""
        if self._calibration:
            length, has_labels = request.sequence_length, request.has_labels
            rows = decode_tokens(self._calibration, 1, length, vocab_size, has_labels=has_labels)
            compute_gradients(
                self._replica.model, self._replica.parameters, rows, micro_batch_size=1, device=self._replica.device,
                clip=None, check=check, pieces=self, predicted=max(1, count_predicted(rows)),
            )  # fmt: skip

    def begin(self) -> None:
        """Begin the batch anew, after one that ran out of memory."""
        self._rows = []

    def add(self, loss: float, gradients: Mapping[str, Tensor]) -> None:
        """Note a piece's summed loss, and the gradient of the batch up to it."""
        self._rows.append(WorkRow(loss, self._sketch.compute(gradients)))

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
            self.add(loss, subtract(self._start, self._replica.parameters))

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
