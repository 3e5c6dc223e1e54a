"""The sketch of a gradient: 64 sums with random signs, which only whoever has the gradient can compute (V3).

The signs of a round follow from its seed. They differ from row to row: with one vector of signs for many rows, the sums
would follow from activations and deltas, without the gradient of the weights. An eighth of the rows is enough.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

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
_BLOCK: Final = 1 << 22  # numbers that are multiplied at once


def compute_signs(seed: bytes) -> Tensor:
    """The 2^22 signs of a round: bit b of the stream, in bytes from the lowest bit on, is -1 where it is not set."""
    stream = blake3(SKETCH_TAG + seed).digest(length=SIGNS // 8)
    signs = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little").view(np.int8)
    signs *= 2
    signs -= 1
    return torch.from_numpy(signs)


class _Rows(NamedTuple):
    """Rows of one tensor that take part; `first` is the number of the first one."""

    first: int
    numbers: Tensor

    @property
    def place(self) -> tuple[int, int, int]:
        rows, width = self.numbers.shape
        return self.first, rows, width


class TakenRows(NamedTuple):
    """The rows of one tensor that take part: one in eight from `first` on, by their `numbers` in the sketch."""

    first: int
    numbers: Tensor
    width: int

    @property
    def are_none(self) -> bool:
        return len(self.numbers) == 0

    def take(self, delta: Tensor) -> Tensor:
        """Of an output's gradient, the part of these rows."""
        return delta[..., self.first :: ROWS_OF_ONE]


class _Block(NamedTuple):
    """Rows of one width, of the parts named, that are multiplied at once."""

    parts: list[int]
    signs: Tensor
    buckets: Tensor


class Sketch:
    """The sketches of a round's gradients, on one device. The signs of their rows are gathered at the first one."""

    def __init__(self, seed: bytes, device: torch.device | str = "cpu") -> None:
        self._signs = compute_signs(seed).to(device)
        self._first = seed[0] % ROWS_OF_ONE
        self._places: list[tuple[int, int, int]] = []
        self._blocks: list[_Block] = []

    @torch.no_grad()
    def compute(self, gradients: Mapping[str, Tensor]) -> Values:
        """The 64 values of gradients by name."""
        parts = list(self._select(gradients))
        if (places := [part.place for part in parts]) != self._places:
            self._places, self._blocks = places, [self._gather(group, places) for group in _group(places)]
        buckets = torch.zeros(SKETCH_VALUES, device=self._signs.device)
        for block in self._blocks:
            numbers = torch.cat([parts[part].numbers for part in block.parts]).float()
            buckets.index_add_(0, block.buckets, numbers.mul_(block.signs).sum(1))
        return tuple(buckets.tolist())

    def find_rows(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, TakenRows]:
        """The rows that take part, of tensors whose rows are not cut."""
        found, passed = dict[str, TakenRows](), 0
        for name, shape in sorted(shapes.items()):
            width = max(1, shape[-1]) if shape else 1
            count, first = math.prod(shape) // width, (self._first - passed) % ROWS_OF_ONE
            numbers = torch.arange(passed + min(first, count), passed + count, ROWS_OF_ONE)
            found[name] = TakenRows(first, numbers, width)
            passed += count
        return found

    def _select(self, gradients: Mapping[str, Tensor]) -> Iterator[_Rows]:
        passed = 0
        for matrix in _iterate_matrices(gradients):
            first = passed + (self._first - passed) % ROWS_OF_ONE
            for numbers in matrix[first - passed :: ROWS_OF_ONE].split(max(1, _BLOCK // matrix.shape[1])):
                if len(numbers):
                    yield _Rows(first, numbers)
                first += len(numbers) * ROWS_OF_ONE
            passed += len(matrix)

    def _gather(self, group: list[int], places: Sequence[tuple[int, int, int]]) -> _Block:
        width = places[group[0]][2]
        numbers = [first + ROWS_OF_ONE * torch.arange(rows) for first, rows, _ in (places[part] for part in group)]
        return _Block(group, *self.find_signs(torch.cat(numbers), width))

    def find_signs(self, numbers: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The signs of rows with these numbers, int8 [rows, width], and the bucket of each."""
        rows = numbers.to(self._signs.device)
        return self._signs.unfold(0, width, 1)[rows * STRIDE % (SIGNS - width)], rows // ROWS_OF_ONE % SKETCH_VALUES


def _group(places: Sequence[tuple[int, int, int]]) -> Iterator[list[int]]:
    """The numbers of parts of one width, of at most a block together where they are several."""
    for width in sorted({width for _, _, width in places}):
        group, size = list[int](), 0
        for number, (_, rows, _) in ((n, place) for n, place in enumerate(places) if place[2] == width):
            if group and size + rows * width > _BLOCK:
                yield group
                group, size = [], 0
            group.append(number)
            size += rows * width
        yield group


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
