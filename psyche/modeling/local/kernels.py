"""The exchange of local steps as compiled loops over chunks (numba), with the bytes of `exchange`.

A chunk is the work of one thread, and its numbers stay in the cache.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.modeling.distro.codec import HIGH_LEVEL, LEAST_EXPONENT, MEAN_BITS, UNIT_BITS, ChunkSets
from psyche.modeling.distro.compiled import compile_loops, share

_INFINITY: Final = 0x7F800000  # magnitudes from this bit pattern on are infinite or NaN
_BUCKET_SHIFT: Final = 19  # a bucket of magnitudes has one exponent and the first four bits of the fraction
_BUCKETS: Final = 1 << (31 - _BUCKET_SHIFT)
_ROOT_HALF: Final = math.sqrt(0.5)


@compile_loops
def _find_bound(
    keys: NDArray[np.uint32], topk: int, counts: NDArray[np.int32], near: NDArray[np.uint32]
) -> tuple[int, int]:
    """The topk-th largest key, and how many equal to it are among the topk; (0, 0) if no more are above 0."""
    counts[:] = 0
    for key in keys:
        counts[key >> np.uint32(_BUCKET_SHIFT)] += 1
    above, bucket = 0, _BUCKETS - 1
    while bucket > 0 and above + counts[bucket] < topk:
        above += counts[bucket]
        bucket -= 1
    size = 0
    for key in keys:
        if key >> np.uint32(_BUCKET_SHIFT) == bucket and key > 0:
            near[size] = key
            size += 1
    if bucket == 0 and above + size <= topk:
        return 0, 0
    near[:size].sort()
    bound = near[size - (topk - above)]
    for place in range(size - (topk - above), size):
        above += near[place] > bound
    return bound, topk - above


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
    memory: NDArray[np.float32], deltas: NDArray[np.float32], decay: np.float32, bits: int,
    indices: NDArray[np.int32], levels: NDArray[np.int8], exponents: NDArray[np.int8],
) -> None:  # fmt: skip
    chunks, area = memory.shape
    topk = indices.shape[1]
    keys, near = np.empty(area, np.uint32), np.empty(area, np.uint32)
    counts, values = np.empty(_BUCKETS, np.int32), np.empty(topk, np.float32)
    for chunk in range(chunks):
        row = memory[chunk]
        for place in range(area):
            row[place] = np.float32(np.float32(decay * row[place]) + deltas[chunk, place])
        raw = row.view(np.uint32)
        for place in range(area):
            key = raw[place] & np.uint32(0x7FFFFFFF)
            keys[place] = key if key < np.uint32(_INFINITY) else np.uint32(0)
        bound, ties = _find_bound(keys, topk, counts, near)
        size = 0
        for place in range(area):
            key = keys[place]
            if key > bound or (key == bound and ties > 0):
                ties -= key == bound
                indices[chunk, size] = place
                values[size] = row[place]
                size += 1
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


def compress(memory: torch.Tensor, deltas: torch.Tensor, decay: float, bits: int, topk: int) -> ChunkSets:
    """Add deltas [chunks, h, w] to the decayed error memory [chunks, area], in place, and choose what is sent."""
    chunks, area = memory.shape
    indices = np.full((chunks, topk), area, dtype=np.int32)
    levels, exponents = np.zeros((chunks, topk), dtype=np.int8), np.zeros(chunks, dtype=np.int8)
    rows, added = memory.numpy(), deltas.reshape(chunks, area).numpy()

    def run(start: int, stop: int) -> None:
        part = slice(start, stop)
        _compress(rows[part], added[part], np.float32(decay), bits, indices[part], levels[part], exponents[part])

    share(chunks, run)
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
