"""The exchange of local steps as compiled loops over chunks (numba), with the bytes of `exchange`.

A chunk is the work of one thread, and its numbers stay in the cache.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.modeling.distro.blocks import Tile
from psyche.modeling.distro.codec import HIGH_LEVEL, LEAST_EXPONENT, MEAN_BITS, UNIT_BITS, ChunkSets
from psyche.modeling.distro.compiled import compile_loops, share
from psyche.modeling.distro.kernels import Corner, get_corner, select

_ROOT_HALF: Final = math.sqrt(0.5)


@compile_loops
def _quantize(values: NDArray[np.float32], bits: int, levels: NDArray[np.int8]) -> int:
    """`exchange.quantize` of one chunk's values, which are not 0; the exponent."""
    largest = 0.0
    for value in values:
        largest = max(largest, abs(float(value)))
    top = math.frexp(largest)[1]
    total = 0
    for value in values:
        total += int(math.ldexp(abs(float(value)), MEAN_BITS - top))
    fraction, power = math.frexp(total / values.size)
    nearest = power - (1 if fraction < _ROOT_HALF else 0) + top - MEAN_BITS
    exponent = min(0, max(LEAST_EXPONENT, nearest - (bits - 1)))
    high = math.ldexp(2.0, exponent)
    for place, value in enumerate(values):
        level = HIGH_LEVEL if bits > 1 and abs(float(value)) >= high else 1
        levels[place] = level if value > 0 else -level
    return exponent


@compile_loops
def _compress(
    memory: NDArray[np.float32], deltas: NDArray[np.float32], corner: Corner, decay: np.float32, bits: int,
    indices: NDArray[np.int32], levels: NDArray[np.int8], exponents: NDArray[np.int8], start: int, stop: int,
) -> None:  # fmt: skip
    """Some chunks of a rectangle of deltas [strips, h, columns, w]."""
    area, topk = memory.shape[1], indices.shape[1]
    height, width = deltas.shape[1], deltas.shape[3]
    keys, maxima, near = np.empty(area, np.int32), np.empty(area, np.int32), np.empty(area, np.int32)
    values = np.empty(topk, np.float32)
    for chunk in range(start, stop):
        strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
        row = memory[chunk]
        for line in range(height):
            part, delta = row[line * width : (line + 1) * width], deltas[strip, line, column]
            for place in range(width):
                part[place] = np.float32(np.float32(decay * part[place]) + delta[place])
        size = select(row, topk, keys, maxima, near, indices[chunk])
        for entry in range(size):
            values[entry] = row[indices[chunk, entry]]
        if size:
            exponents[chunk] = _quantize(values[:size], bits, levels[chunk])


@compile_loops
def _apply(
    weights: NDArray[np.float32], indices: NDArray[np.int32], values: NDArray[np.int8], exponents: NDArray[np.int8],
    steps: NDArray[np.int64], rate: float, start: int, stop: int,
) -> None:  # fmt: skip
    """Move some chunks of `weights`, a rectangle [strips, h, columns, w]; the sets are [members, chunks, k]."""
    columns, width = weights.shape[2:]
    area = weights.shape[1] * width
    members, _, topk = indices.shape
    sums = np.zeros(area, np.int64)
    for chunk in range(start, stop):
        strip, column = chunk // columns, chunk % columns
        for member in range(members):
            scale = steps[member] << (exponents[member, chunk] + UNIT_BITS)
            for entry in range(topk):
                place = indices[member, chunk, entry]
                if place == area:
                    break
                sums[place] += values[member, chunk, entry] * scale
        for member in range(members):
            for entry in range(topk):
                place = indices[member, chunk, entry]
                if place == area:
                    break
                if sums[place]:
                    weights[strip, place // width, column, place % width] -= np.float32(sums[place] * rate)
                    sums[place] = 0


def compress(memory: torch.Tensor, deltas: torch.Tensor, tile: Tile, decay: float, bits: int, topk: int) -> ChunkSets:
    """Add a tile of deltas [strips, h, columns, w] to its decayed error memory, in place, and choose what is sent."""
    chunks, area = memory.shape
    indices = np.full((chunks, topk), area, dtype=np.int32)
    levels, exponents = np.zeros((chunks, topk), dtype=np.int8), np.zeros(chunks, dtype=np.int8)
    given = memory.numpy(), deltas.numpy(), get_corner(tile), np.float32(decay), bits
    share(chunks, lambda start, stop: _compress(*given, indices, levels, exponents, start, stop))
    return ChunkSets(indices, levels, exponents)


def apply(weights: torch.Tensor, votes: Sequence[ChunkSets], steps: Sequence[int], rate: float) -> None:
    """Move a rectangle of weights [strips, h, columns, w] by the sets of its chunks, in place."""
    rectangle, counts = weights.numpy(), np.array(steps, dtype=np.int64)
    indices, values, exponents = (np.stack(part) for part in zip(*map(_get_arrays, votes), strict=True))

    def run(start: int, stop: int) -> None:
        _apply(rectangle, indices, values, exponents, counts, rate, start, stop)

    share(indices.shape[1], run)


def _get_arrays(sets: ChunkSets) -> Iterator[NDArray[Any]]:
    assert sets.exponents is not None, "a payload of local steps has exponents"
    yield from (sets.indices, sets.values, sets.exponents)
