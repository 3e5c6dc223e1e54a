"""Copies of the weights as rounds began, from which those of the last four rounds are made again (V8)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from psyche.core.state.state import Optimizer
from psyche.wire.trainer import COPIED_EVERY


class WeightCopies:
    """Two copies in host memory, renewed in turn; `weights` are those that the trainer changes in place."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = weights
        self._copies: list[tuple[int, list[Tensor]]] = []  # of which round, the older one first

    @torch.no_grad()
    def note(self, height: int) -> None:
        """The weights are those of D(`height`)."""
        if height % COPIED_EVERY:
            return
        made = self._copies.pop(0)[1] if len(self._copies) == 2 else _allocate(self._weights)
        _copy(self._weights, made)
        self._copies.append((height, made))

    def find(self, height: int) -> Sequence[Tensor] | None:
        """The copy that the weights of D(`height`) are made from: that of the last multiple of four."""
        return next((copy for at, copy in self._copies if at == height - height % COPIED_EVERY), None)

    @contextmanager
    def lend(self, copy: Sequence[Tensor], advance: Callable[[], None]) -> Iterator[None]:
        """Have a copy, and what `advance` makes of it, in the place of the weights; afterwards they are as before."""
        own = _allocate(self._weights)
        _copy(self._weights, own)
        try:
            _copy(copy, self._weights)
            advance()
            yield
        finally:
            _copy(own, self._weights)


def make_copies(optimizer: Optimizer, weights: Mapping[str, Tensor]) -> WeightCopies | None:
    """None where nobody can compute a round of others again."""
    return WeightCopies(list(weights.values())) if optimizer.is_replayable else None


def _allocate(weights: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty(one.shape, dtype=one.dtype) for one in weights]


@torch.no_grad()
def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for old, new in zip(source, target, strict=True):
        new.copy_(old)
