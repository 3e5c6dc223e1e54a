"""DisTrO as compiled loops over chunks (numba); a chunk is the work of one thread, and its numbers stay in the cache.

The weights after an apply have the bytes of `apply`: the last pass is rounded, with a bound of its error, and where the
bound leaves the sign open it is computed exactly. What is compressed may differ from that of `transform` in the last
bits, as between two devices.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.modeling.distro.basis import BASIS_BITS, get_integer_basis
from psyche.modeling.distro.blocks import Tile
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.compiled import compile_loops, share
from psyche.modeling.distro.loops.fast_dct import make_programs
from psyche.modeling.distro.loops.selection import select
from psyche.modeling.distro.loops.vectors import (
    DCT,
    INVERSE,
    LANES,
    WORD,
    count_zeros,
    move_lanes,
    prefetch,
    prefetch_bytes,
    read_int8,
    read_int32,
    transform_columns,
)

Floats = NDArray[np.float32]
# Of a rectangle of chunks: its first strip and column, its columns, and the tensor's.
Corner = tuple[int, int, int, int]


def _make_transform(direction: int) -> Callable[[Floats, int, int, int, int, Floats], None]:
    @compile_loops
    def transform(source: Floats, at: int, stride: int, rows: int, columns: int, target: Floats) -> None:
        for column in range(0, columns, LANES):
            begin, place = at + column, column * rows
            if rows == 64:
                transform_columns(source, begin, stride, target, place, 64, direction)
            elif rows == 128:
                transform_columns(source, begin, stride, target, place, 128, direction)
            elif rows == 32:
                transform_columns(source, begin, stride, target, place, 32, direction)
            else:
                transform_columns(source, begin, stride, target, place, 16, direction)

    return transform


transform: Final = _make_transform(DCT)  # of `columns` columns of `rows` rows; the target has a row of each
invert: Final = _make_transform(INVERSE)  # of `rows` frequencies of each column


@compile_loops
def find_place(corner: Corner, chunk: int, height: int, width: int) -> tuple[int, int]:
    """Where a chunk of a rectangle begins in its tensor, and how far apart its lines are."""
    strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
    return (strip * height * corner[3] + column) * width, corner[3] * width


@compile_loops
def prefetch_chunk(numbers: Floats, corner: Corner, chunk: int, height: int, width: int) -> None:
    """Bring the lines of a chunk from memory: they are too many for the processor to see what comes next."""
    at, stride = find_place(corner, chunk, height, width)
    for line in range(height):
        for place in range(at + line * stride, at + line * stride + width, LANES):
            prefetch(numbers, place)


@compile_loops
def prefetch_votes(votes: NDArray[np.int64], topk: int, chunk: int) -> None:
    """Bring the sets of a chunk from memory: they are in too many places for the processor to see what comes next."""
    for voter in range(len(votes)):
        for at in range(chunk * topk * 4, (chunk + 1) * topk * 4, 64):
            prefetch_bytes(votes[voter, 0], at)
        for at in range(chunk * topk, (chunk + 1) * topk, 64):
            prefetch_bytes(votes[voter, 1], at)


@compile_loops
def compress_chunks(
    gradient: Floats, corner: Corner, edges: tuple[int, int], lr: np.float32, memory: Floats, decay: np.float32,
    indices: NDArray[np.int32], values: Floats, start: int, stop: int,
) -> None:  # fmt: skip
    """Some chunks of a rectangle of gradients: transform, add to the momentum, select."""
    height, width = edges
    area, topk = height * width, indices.shape[1]
    turned, upright = np.empty(area, np.float32), np.empty(area, np.float32)
    near, guess = (np.empty(area + WORD, np.int32), np.empty(area + WORD, np.float32)), 0
    for chunk in range(start, stop):
        at, stride = find_place(corner, chunk, height, width)
        prefetch_chunk(gradient, corner, chunk + 1, height, width)
        transform(gradient, at, stride, height, width, turned)
        transform(turned, 0, height, width, height, upright)
        row = memory[chunk]
        for place in range(area):
            row[place] = np.float32(np.float32(decay * row[place]) + np.float32(lr * upright[place]))
        size, guess = select(row, topk, guess, near, indices[chunk], values[chunk])
        indices[chunk, size:] = area
        values[chunk, size:] = 0


@compile_loops
def add_lines(
    votes: NDArray[np.int64], topk: int, chunk: int, codes: NDArray[np.int32],
    averages: NDArray[np.int32], basis: NDArray[np.int32], lines: NDArray[np.int32], used: NDArray[np.bool_],
) -> bool:  # fmt: skip
    """Average the votes of a chunk and invert its columns, exactly, each to a line; whether there are votes.

    `votes` are addresses of indices and values, and `codes` is zero again.
    """
    voters, first = len(votes), chunk * topk
    area, width = lines.size, lines.shape[0]
    shift = 0
    while width >> shift > 1:  # a division for each vote would take longer than the rest
        shift += 1
    used[:] = False
    for voter in range(voters):
        for entry in range(first, first + topk):
            place = read_int32(votes[voter, 0], entry)
            if place == area:
                break
            codes[place] += 2 * voters + 1 + read_int8(votes[voter, 1], entry)
    has_votes = False
    for voter in range(voters):
        for entry in range(first, first + topk):
            place = read_int32(votes[voter, 0], entry)
            if place == area:
                break
            has_votes = True
            mean = averages[codes[place]]
            codes[place] = 0
            if mean == 0:
                continue
            u, v = place >> shift, place & (width - 1)
            line, wave = lines[v], basis[u]
            if used[v]:
                for i in range(wave.size):
                    line[i] += mean * wave[i]
            else:
                used[v] = True
                for i in range(wave.size):
                    line[i] = mean * wave[i]
    return has_votes


@compile_loops
def _settle(
    found: int, at: int, weights: Floats, i: int, j: int, lines: NDArray[np.int32], used: NDArray[np.bool_],
    basis: NDArray[np.int64], lr: np.float32,
) -> None:  # fmt: skip
    """Move those of 16 weights whose signs the rounded pass leaves open, by the exact sums."""
    while found:
        lane = count_zeros(found)
        found &= found - 1
        total = np.int64(0)
        for v in range(used.size):
            if used[v]:
                total += basis[v, j + lane] * np.int64(lines[v, i])
        if total:
            weights[at + lane] -= lr if total > 0 else -lr


@compile_loops
def apply_chunks(
    weights: Floats, corner: Corner, edges: tuple[int, int], votes: NDArray[np.int64], topk: int,
    averages: NDArray[np.int32], bases: tuple[NDArray[np.int32], NDArray[np.int64]], error: np.float32,
    lr: np.float32, start: int, stop: int,
) -> None:  # fmt: skip
    """Move some chunks of a rectangle of weights by votes, which are addresses of indices and values."""
    height, width = edges
    codes, used = np.zeros(height * width, np.int32), np.zeros(width, np.bool_)
    lines, columns = np.zeros((width, height), np.int32), np.zeros((width, height), np.float32)
    waves, bounds = np.empty(height * width, np.float32), np.empty(height, np.float32)
    for chunk in range(start, stop):
        prefetch_votes(votes, topk, chunk + 1)
        prefetch_chunk(weights, corner, chunk + 1, height, width)
        if not add_lines(votes, topk, chunk, codes, averages, bases[0], lines, used):
            continue
        bounds[:] = 0
        for v in range(width):
            line, column = lines[v], columns[v]
            if used[v]:
                for i in range(height):
                    column[i] = np.float32(line[i])
                    bounds[i] += abs(column[i])
            else:
                column[:] = 0
        invert(columns.reshape(-1), 0, height, width, height, waves)
        at, stride = find_place(corner, chunk, height, width)
        for i in range(height):
            bound = error * bounds[i]
            for j in range(0, width, LANES):
                place = at + i * stride + j
                found = move_lanes(weights, place, waves, i * width + j, bound, lr)
                if found:
                    _settle(found, place, weights, i, j, lines, used, bases[1], lr)


@compile_loops
def move_ahead(
    weights: Floats, corner: Corner, edges: tuple[int, int], memory: Floats, lr: np.float32, start: int, stop: int
) -> None:
    """Move some chunks of a rectangle of weights by -lr times the sign of the momentum as weights."""
    height, width = edges
    turned, upright = np.empty(height * width, np.float32), np.empty(height * width, np.float32)
    for chunk in range(start, stop):
        prefetch_chunk(weights, corner, chunk + 1, height, width)
        invert(memory[chunk], 0, width, height, width, turned)
        invert(turned, 0, height, width, height, upright)
        at, stride = find_place(corner, chunk, height, width)
        for i in range(height):
            for j in range(0, width, LANES):
                move_lanes(weights, at + i * stride + j, upright, i * width + j, np.float32(0), lr)


@compile_loops
def _add_entries(
    memory: Floats, area: int, indices: NDArray[np.int32], values: Floats, factor: np.float32, start: int, stop: int
) -> None:
    topk = indices.shape[1]
    for chunk in range(start, stop):
        for place in indices[min(chunk + 1, stop - 1)]:
            prefetch(memory, (chunk + 1) * area + place)
        for entry in range(topk):
            place = indices[chunk, entry]
            if place == area:
                break
            at = chunk * area + place
            memory[at] = memory[at] + factor * values[chunk, entry] if factor else np.float32(0)


def add_entries(memory: torch.Tensor, chosen: Sequence[torch.Tensor], factor: float) -> None:
    """Add what was sent, times a factor, to memory [chunks, area]; with 0 make it zero."""
    given = flatten(memory), memory.shape[1], *(part.numpy() for part in chosen), np.float32(factor)
    share(len(memory), lambda start, stop: _add_entries(*given, start, stop))


def get_corner(tile: Tile, tensor: torch.Tensor) -> Corner:
    return tile.strips.start, tile.columns.start, tile.shape[1], tensor.shape[2]


def compress(
    gradient: torch.Tensor, tile: Tile, lr: float, memory: torch.Tensor, decay: float, chosen: Sequence[torch.Tensor]
) -> None:
    """Of a tile of gradients [strips, h, columns, w]; `chosen` receives indices and values."""
    given, rows, (indices, values) = flatten(gradient), memory.numpy(), (part.numpy() for part in chosen)
    where, factors = (
        (get_corner(tile, gradient), tuple(gradient.shape[1::2])),
        (np.float32(lr), rows, np.float32(decay)),
    )

    def run_part(start: int, stop: int) -> None:
        compress_chunks(given, *where, *factors, indices, values, start, stop)

    share(tile.chunks, run_part)


def apply(
    weights: torch.Tensor, tile: Tile, votes: Sequence[ChunkSets], averages: NDArray[np.int32], lr: float
) -> None:
    """Move a tile of weights [strips, h, columns, w] by the sets of its chunks."""
    _, height, _, width = weights.shape
    _, inverse, rounding = make_programs(width)
    bases = get_integer_basis(height).astype(np.int32), get_integer_basis(width).astype(np.int64)
    # of the basis on record, which is rounded, and of the fast inverse and its input; the last of sums of magnitudes
    error = (2.0 ** -(BASIS_BITS + 1) + (rounding + 2) * 2.0**-24 * float(inverse.scales.max())) * 1.01
    sets, topk = get_addresses(votes), votes[0].indices.shape[1]
    given, where = flatten(weights), (get_corner(tile, weights), (height, width))

    def run_part(start: int, stop: int) -> None:
        apply_chunks(given, *where, sets, topk, averages, bases, np.float32(error), np.float32(lr), start, stop)

    share(tile.chunks, run_part)


def get_addresses(votes: Sequence[ChunkSets]) -> NDArray[np.int64]:
    """Where indices and values of sets are; the sets must live on while these are used."""
    for one in votes:
        assert one.indices.dtype == np.int32, "as `read_int32` reads them"
        assert one.values.dtype == np.int8, "as `read_int8` reads them"
        assert one.indices.flags.c_contiguous, "rows follow each other"
        assert one.values.flags.c_contiguous, "rows follow each other"
        assert one.indices.shape == one.values.shape == votes[0].indices.shape, "all of the same chunks"
    return np.array([(one.indices.ctypes.data, one.values.ctypes.data) for one in votes], dtype=np.int64)


def look_ahead(weights: torch.Tensor, tile: Tile, memory: torch.Tensor, lr: float) -> None:
    """Move a tile of weights [strips, h, columns, w] by the momentum of its chunks."""
    given, rows, where = flatten(weights), memory.numpy(), (get_corner(tile, weights), tuple(weights.shape[1::2]))
    share(tile.chunks, lambda start, stop: move_ahead(given, *where, rows, np.float32(lr), start, stop))


def flatten(tensor: torch.Tensor) -> Floats:
    return tensor.view(-1).numpy()
