"""A round of local steps in the trainer: which inner batches are left, and the figures of those that are done."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from psyche.core.state.state import Optimizer
from psyche.modeling.local.inner import split_samples
from psyche.modeling.trainer.batch import Cancelled, Gradients, count_predicted
from psyche.wire.trainer import TrainRequest

HasTime = Callable[[float], bool]  # whether so many seconds more fit before the deadline (LS9)


@dataclass(slots=True)
class LocalRound:
    """A round between its calls. `merge_step` is that of the settings while a merge is still to come, else 0."""

    request: TrainRequest
    left: list[tuple[int, torch.Tensor]]  # number and rows of each inner batch
    merge_step: int
    started: float
    compute_seconds: float = 0.0
    done: int = 0
    loss: float = 0.0
    norm: float = 0.0
    predicted: int = 0
    is_cut: bool = False  # it ends with what is done (LS9)

    @property
    def waits_for_merge(self) -> bool:
        return not self.is_cut and self.merge_step > 0 and bool(self.left) and self.left[0][0] >= self.merge_step

    def take_batches(self, has_time: HasTime) -> Iterator[tuple[int, torch.Tensor]]:
        """The inner batches up to the merge, or to the end. One is taken once its successor is asked for.

        After the first, those that would not fit are left out: each takes as long as the one before it did.
        """
        while self.left and not self.waits_for_merge and not self.is_cut:
            started = time.perf_counter()
            yield self.left[0]
            del self.left[0]
            self.is_cut = not has_time(time.perf_counter() - started)

    def watch(self, beat: Callable[[], None], has_time: HasTime) -> Callable[[], None]:
        """The safe point of an inner step; it gives up one, but not the first, that has not ended by the deadline."""

        def check() -> None:
            beat()
            if self.done and not has_time(0.0):
                self.is_cut = True
                raise Cancelled

        return check

    def note(self, gradients: Gradients) -> None:
        """Add up the figures of one inner step."""
        self.done += 1
        self.loss += gradients.loss * gradients.predicted
        self.norm = max(self.norm, gradients.norm)
        self.predicted += gradients.predicted

    def summarize(self) -> Gradients:
        """The mean loss, largest norm and number of predicted tokens, without tensors."""
        return Gradients({}, self.loss / max(1, self.predicted), self.norm, self.predicted)


def make_round(request: TrainRequest, tokens: torch.Tensor, optimizer: Optimizer) -> LocalRound:
    """Cut a batch into inner ones (LS1); those in which no label counts are left out."""
    left = [(number, tokens[rows]) for number, rows in split_samples(len(tokens), optimizer.inner_steps)]
    left = [(number, rows) for number, rows in left if count_predicted(rows)]
    # at an epoch's start nothing is in flight
    merge_step = optimizer.merge_step if request.in_flight and request.height else 0
    return LocalRound(request, left, merge_step, time.perf_counter())
