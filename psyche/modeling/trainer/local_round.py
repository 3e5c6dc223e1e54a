"""A round of local steps in the trainer: which inner batches are left, and the figures of those that are done."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from psyche.core.encoding.work import count_shown_steps
from psyche.core.state.settings import Optimizer
from psyche.modeling.local.inner import split_samples
from psyche.modeling.trainer.batch import Cancelled, Gradients, count_predicted
from psyche.modeling.trainer.replica import Replica
from psyche.modeling.verification.work import MoveLog
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
    log: MoveLog | None = None  # of what it shows, where the run verifies
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

    def pass_merge(self) -> None:
        """What others sent is merged: what comes from here on, nobody else can compute again."""
        self.merge_step = 0
        if self.log is not None:
            self.log.is_closed = True

    def calibrate(self, vocab_size: int, beat: Callable[[], None]) -> None:
        """Begin the table before the first inner step, if there is one."""
        if self.log is not None and not self.done:
            self.log.begin()
            self.log.calibrate(self.request, vocab_size, beat)

    def encode(self, optimizer: Optimizer) -> bytes:
        """The table of what it shows; empty if that is nothing."""
        if self.log is None:
            return b""
        merges = self.request.in_flight and self.request.height > 0
        return self.log.encode(count_shown_steps(optimizer, self.request.samples, self.done, merges=merges))

    def note(self, gradients: Gradients) -> None:
        """Add up the figures of one inner step that is done."""
        if self.log is not None:
            self.log.note(gradients.loss * gradients.predicted)
        self.done += 1
        self.loss += gradients.loss * gradients.predicted
        self.norm = max(self.norm, gradients.norm)
        self.predicted += gradients.predicted

    def summarize(self) -> Gradients:
        """The mean loss, largest norm and number of predicted tokens, without tensors."""
        return Gradients({}, self.loss / max(1, self.predicted), self.norm, self.predicted)


def split_round(tokens: torch.Tensor, inner_steps: int) -> list[tuple[int, torch.Tensor]]:
    """Cut a batch into inner ones (LS1); those in which no label counts are left out."""
    cut = [(number, tokens[rows]) for number, rows in split_samples(len(tokens), inner_steps)]
    return [(number, rows) for number, rows in cut if count_predicted(rows)]


def make_round(request: TrainRequest, tokens: torch.Tensor, replica: Replica, *, is_shown: bool) -> LocalRound:
    """A round that `replica` has begun; `is_shown`: with a table, if one is asked for."""
    optimizer = replica.settings
    left = split_round(tokens, optimizer.inner_steps)
    # at an epoch's start nothing is in flight
    merge_step = optimizer.merge_step if request.in_flight and request.height else 0
    log = MoveLog(request.work, replica) if is_shown and request.work is not None else None
    return LocalRound(request, left, merge_step, time.perf_counter(), log=log)
