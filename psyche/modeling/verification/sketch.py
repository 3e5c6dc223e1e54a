"""The sketch of a gradient: 64 sums with random signs, which only whoever has the gradient can compute (V3).

The signs of a round follow from its seed. They differ from row to row: with one vector of signs for many rows, the sums
would follow from activations and deltas, without the gradient of the weights. An eighth of the rows is enough.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from psyche.core.encoding.work import SKETCH_VALUES, Values

SKETCH_TAG: Final = b"psyche/sketch/1"
SIGNS: Final = 1 << 22
STRIDE: Final = 2_592_192  # between the signs of two rows
ROWS_OF_ONE: Final = 8  # one row in so many takes part
LONGEST_ROW: Final = 1 << 21  # a longer one is cut into several
_BLOCK: Final = 1 << 22  # numbers whose signs are gathered at once


def compute_signs(seed: bytes) -> Tensor:
    """The 2^22 signs of a round: bit b of the stream, in bytes from the lowest bit on, is -1 where it is not set."""
    stream = blake3(SKETCH_TAG + seed).digest(length=SIGNS // 8)
    bits = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little")
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1)


class Sketch:
    """The sketches of a round's gradients, on one device."""

    def __init__(self, seed: bytes, device: torch.device | str = "cpu") -> None:
        self._signs = compute_signs(seed).to(device)
        self._first = seed[0] % ROWS_OF_ONE

    @torch.no_grad()
    def compute(self, gradients: Mapping[str, Tensor]) -> Values:
        """The 64 values of gradients by name."""
        buckets = torch.zeros(SKETCH_VALUES, device=self._signs.device)
        passed = 0
        for matrix in _iterate_matrices(gradients):
            skipped = (self._first - passed) % ROWS_OF_ONE
            self._add(buckets, matrix[skipped::ROWS_OF_ONE], passed + skipped)
            passed += len(matrix)
        return tuple(buckets.tolist())

    def _add(self, buckets: Tensor, matrix: Tensor, first: int) -> None:
        width = matrix.shape[1]
        rows = torch.arange(len(matrix), device=buckets.device) * ROWS_OF_ONE + first
        signs = self._signs.unfold(0, width, 1)
        for part, numbers in zip(*(each.split(max(1, _BLOCK // width)) for each in (matrix, rows)), strict=True):
            sums = (part.float() * signs[numbers * STRIDE % (SIGNS - width)]).sum(1)
            buckets.index_add_(0, numbers // ROWS_OF_ONE % SKETCH_VALUES, sums)


def _iterate_matrices(gradients: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """All rows of the tensors' last dimensions, in the order of names."""
    for _, tensor in sorted(gradients.items()):
        width = tensor.shape[-1] if tensor.dim() else 1
        matrix = tensor.reshape(-1, width) if width else tensor.reshape(0, 1)
        if width <= LONGEST_ROW:
            yield matrix
            continue
        for row in matrix:
            yield from (part[None] for part in row.split(LONGEST_ROW))
