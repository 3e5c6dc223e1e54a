"""The exchange of local steps as compiled loops over chunks (numba), with the bytes of `exchange`.

A chunk is the work of one thread, and its numbers stay in the cache.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.modeling.distro.blocks import Tile
from psyche.modeling.distro.codec import HIGH_LEVEL, LEAST_EXPONENT, MEAN_BITS, UNIT_BITS, ChunkSets
from psyche.modeling.distro.compiled import compile_loops, share
from psyche.modeling.distro.kernels import (
    Corner,
    Floats,
    find_place,
    flatten,
    get_addresses,
    get_corner,
    prefetch_chunk,
    prefetch_votes,
)
from psyche.modeling.distro.loops.selection import select
from psyche.modeling.distro.loops.vectors import LANES, WORD, read_int8, read_int32, subtract_sums

_ROOT_HALF: Final = math.sqrt(0.5)


@compile_loops
def _quantize(values: Floats, bits: int) -> int:
    """`exchange.quantize` of one chunk's values, which are not 0, in place; the exponent."""
    largest = np.float32(0)
    for value in values:
        largest = max(largest, abs(value))
    top = math.frexp(float(largest))[1]
    unit, total = math.ldexp(1.0, MEAN_BITS - top), 0
    for value in values:
        total += int(abs(float(value)) * unit)
    fraction, power = math.frexp(total / values.size)
    nearest = power - (1 if fraction < _ROOT_HALF else 0) + top - MEAN_BITS
    exponent = min(0, max(LEAST_EXPONENT, nearest - (bits - 1)))
    unit = math.ldexp(1.0, exponent)
    for place, value in enumerate(values):
        level = HIGH_LEVEL * unit if bits > 1 and abs(float(value)) >= 2.0 * unit else unit
        values[place] = np.float32(level if value > 0 else -level)
    return exponent


@compile_loops
def _compress(
    memory: Floats, deltas: Floats, corner: Corner, edges: tuple[int, int], decay: np.float32, bits: int,
    indices: NDArray[np.int32], values: Floats, exponents: NDArray[np.int8], start: int, stop: int,
) -> None:  # fmt: skip
    """Some chunks of a rectangle of deltas."""
    height, width = edges
    area, topk = height * width, indices.shape[1]
    near, guess = (np.empty(area + WORD, np.int32), np.empty(area + WORD, np.float32)), 0
    for chunk in range(start, stop):
        at, stride = find_place(corner, chunk, height, width)
        prefetch_chunk(deltas, corner, chunk + 1, height, width)
        row = memory[chunk]
        for line in range(height):
            begin = at + line * stride
            part, delta = row[line * width : (line + 1) * width], deltas[begin : begin + width]
            for place in range(width):
                part[place] = np.float32(np.float32(decay * part[place]) + delta[place])
        size, guess = select(row, topk, guess, near, indices[chunk], values[chunk])
        indices[chunk, size:] = area
        values[chunk, size:] = 0
        exponents[chunk] = _quantize(values[chunk, :size], bits) if size else 0


@compile_loops
def _apply(
    weights: Floats, corner: Corner, edges: tuple[int, int], votes: NDArray[np.int64], topk: int,
    exponents: NDArray[np.int8], steps: NDArray[np.int64], rate: float, start: int, stop: int,
) -> None:  # fmt: skip
    """Move some chunks of a rectangle of weights; votes are addresses of indices and values."""
    height, width = edges
    area, whole = height * width, width // LANES * LANES
    sums = np.zeros(area + 1, np.float64)  # the last place is for padding
    for chunk in range(start, stop):
        prefetch_votes(votes, topk, chunk + 1)
        prefetch_chunk(weights, corner, chunk + 1, height, width)
        for member in range(len(votes)):
            scale = math.ldexp(float(steps[member]), exponents[member, chunk] + UNIT_BITS)
            indices, levels = votes[member]
            for entry in range(chunk * topk, (chunk + 1) * topk):
                sums[np.uint32(read_int32(indices, entry))] += read_int8(levels, entry) * scale
        at, stride = find_place(corner, chunk, height, width)
        for line in range(height):
            begin, first = at + line * stride, line * width
            for place in range(0, whole, LANES):
                subtract_sums(weights, begin + place, sums, first + place, rate)
            for place in range(whole, width):
                weights[begin + place] -= np.float32(sums[first + place] * rate + 0.0)
                sums[first + place] = 0


def compress(
    memory: torch.Tensor, deltas: torch.Tensor, tile: Tile, decay: float, bits: int, chosen: Sequence[torch.Tensor]
) -> None:
    """Add a tile of deltas [strips, h, columns, w] to its decayed error memory, in place, and choose what is sent.

    `chosen` receives indices, values and exponents.
    """
    _, height, _, width = deltas.shape
    given = memory.numpy(), flatten(deltas), get_corner(tile, deltas), (height, width), np.float32(decay), bits
    made = [part.numpy() for part in chosen]
    share(tile.chunks, lambda start, stop: _compress(*given, *made, start, stop))


def apply(weights: torch.Tensor, tile: Tile, votes: Sequence[ChunkSets], steps: Sequence[int], rate: float) -> None:
    """Move a tile of weights [strips, h, columns, w] by the sets of its chunks, in place."""
    _, height, _, width = weights.shape
    rectangle, counts = (flatten(weights), get_corner(tile, weights), (height, width)), np.array(steps, dtype=np.int64)
    exponents = np.stack([one.exponents for one in votes if one.exponents is not None])
    addresses, topk = get_addresses(votes), votes[0].indices.shape[1]

    def run(start: int, stop: int) -> None:
        _apply(*rectangle, addresses, topk, exponents, counts, rate, start, stop)

    share(tile.chunks, run)
