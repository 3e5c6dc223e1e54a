"""Choices scored with a trainer's model, in time that it does not train."""

import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from psyche.core.state.state import ZERO32
from psyche.errors import TrainerError
from psyche.modeling.device import get_free_bytes, is_out_of_memory, release_memory
from psyche.modeling.trainer.batch import Cancelled
from psyche.modeling.trainer.local_round import HasTime
from psyche.modeling.trainer.replica import Replica
from psyche.wire.trainer import OTHER_WEIGHTS, ScoreReply, ScoreRequest, ScoreRow

COPY_SHARE: Final = 4  # a copy takes at most one such part of the free memory: training needs the rest


class Scores:
    """Scores on a copy of the weights of one digest, or on the weights while they are these: in a group, without room.

    The copy is fp32 on a CPU, bf16 on a GPU, beside the masters; the model computes with it in their place.
    """

    def __init__(self, replica: Replica, vocab_size: int, *, is_asked: bool) -> None:
        self._replica, self._vocab_size = replica, vocab_size
        self._is_on = is_asked
        self._type = torch.bfloat16 if replica.device.type == "cuda" else torch.float32
        needed = sum(one.numel() for one in replica.parameters.values()) * self._type.itemsize
        has_copy = is_asked and not replica.is_group and COPY_SHARE * needed <= get_free_bytes(replica.device)
        self._copy: dict[str, Tensor] | None = {} if has_copy else None
        self._digest = ZERO32  # of the copy, or of the weights

    @torch.no_grad()
    def note(self, digest: bytes) -> None:
        """The weights have this digest."""
        if self._copy is not None and self._digest != digest:
            for name, weight in self._replica.parameters.items():
                if name in self._copy:
                    self._copy[name].copy_(weight)
                else:
                    self._copy[name] = weight.detach().to(self._type, copy=True)
        self._digest = digest

    def note_change(self) -> None:
        """The weights are others now."""
        if self._copy is None:
            self._digest = ZERO32

    def score(self, request: ScoreRequest, beat: Callable[[], None], has_time: HasTime) -> ScoreReply:
        started = time.perf_counter()
        if not self._is_on:
            why = "this trainer scores nothing: its model was loaded for training alone"
            return ScoreReply(rows=(), seconds=0.0, refused=why)
        if request.digest not in (b"", self._digest):
            return ScoreReply(rows=(), seconds=0.0, refused=OTHER_WEIGHTS)
        done: list[tuple[tuple[float, bool], ...]] = []
        written: list[int] = []
        is_cancelled, refused = False, ""

        def check() -> None:
            beat()
            if written and not has_time(0.0):
                raise Cancelled

        replica = self._replica
        replica.scorer.weights = (self._copy or None) if request.digest else None
        try:
            for row in request.rows:
                if not has_time(0.0):
                    break
                self._check(row)
                done.append(tuple(replica.score(row, beat)))
            if request.tokens:
                self._check(ScoreRow(context=request.start, choices=(request.start,)))
                replica.write(request.start, request.tokens, written, check)
        except Cancelled:
            is_cancelled = True
        except Exception as error:
            if replica.is_group or not is_out_of_memory(error):  # other ranks would wait for this one
                raise
            release_memory(replica.device)
            refused = "out of memory"
        return ScoreReply(
            rows=tuple(done), seconds=time.perf_counter() - started, cancelled=is_cancelled, refused=refused,
            written=tuple(written),
        )  # fmt: skip

    def _check(self, row: ScoreRow) -> None:
        """Refuse what the model cannot read.

        Raises:
            TrainerError: a part without tokens, or a token that the vocabulary does not have.
        """
        parts = (row.context, *row.choices)
        if len(parts) < 2 or not all(parts):
            raise TrainerError("score: a row has a context and one choice or more, each of one token or more")
        if not 0 <= min(map(min, parts)) <= max(map(max, parts)) < self._vocab_size:
            raise TrainerError(f"score: a token id is not below {self._vocab_size}, the vocabulary's size")
