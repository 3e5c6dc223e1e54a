"""DisTrO as compiled loops over chunks (numba); a chunk is the work of one thread, and its numbers stay in the cache.

The weights after an apply have the bytes of `apply`: the last pass is rounded, with a bound of its error, and where the
bound leaves the sign open it is computed exactly. What is compressed may differ from that of `transform` in the last
bits, as between two devices.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.modeling.distro.basis import BASIS_BITS, get_integer_basis
from psyche.modeling.distro.blocks import Tile
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.compiled import compile_loops, share
from psyche.modeling.distro.fast_dct import Program, make_programs

_INFINITY: Final = 0x7F800000  # magnitudes from this bit pattern on are infinite or NaN
_PARTS_PER_ENTRY: Final = 8  # with this many parts per entry, few parts have more than their share of candidates
_LEAST_PART: Final = 4

Floats = NDArray[np.float32]
Corner = tuple[int, int, int]  # of a rectangle of chunks: its first strip and column, and its number of columns


@compile_loops
def run(program: Program, x: Floats) -> None:
    """Let each step of a program mix two rows of `x`."""
    steps, coefficients = program.rows, program.coefficients
    width = x.shape[1]
    for step in range(steps.shape[0]):
        p, q = steps[step, 0], steps[step, 1]
        a, b, c, d = coefficients[step, 0], coefficients[step, 1], coefficients[step, 2], coefficients[step, 3]
        if p == q:
            for column in range(width):
                x[p, column] *= a
        elif a == 1 and b == 1 and c == 1 and d == -1:
            for column in range(width):
                first, second = x[p, column], x[q, column]
                x[p, column] = first + second
                x[q, column] = first - second
        else:
            for column in range(width):
                first, second = x[p, column], x[q, column]
                x[p, column] = a * first + b * second
                x[q, column] = c * first + d * second


@compile_loops
def turn(x: Floats, program: Program, turned: Floats) -> None:
    """Rows at their places, scaled, as columns."""
    for u in range(program.places.size):
        row, scale = x[program.places[u]], program.scales[u]
        for j in range(row.size):
            turned[j, u] = row[j] * scale


@compile_loops
def turn_back(x: Floats, program: Program, turned: Floats) -> None:
    """Columns, scaled, as rows at their places."""
    for u in range(program.places.size):
        row, scale = turned[program.places[u]], program.scales[u]
        for j in range(row.size):
            row[j] = x[j, u] * scale


@compile_loops
def count_from(keys: NDArray[np.int32], bound: int) -> int:
    count = 0
    for key in keys:
        count += key >= bound
    return count


@compile_loops
def find_bound(keys: NDArray[np.int32], topk: int, low: int, high: int) -> int:
    """The largest bound between `low` and `high` that at least `topk` keys reach, or `low`; found bit by bit.

    It ends early at one that exactly `topk` reach.
    """
    while low < high:
        middle = low + (high - low + 1) // 2
        count = count_from(keys, np.int32(middle))
        if count == topk:
            return middle
        if count > topk:
            low = middle
        else:
            high = middle - 1
    return low


@compile_loops
def find_candidates(
    keys: NDArray[np.int32], topk: int, maxima: NDArray[np.int32], near: NDArray[np.int32]
) -> tuple[int, int]:
    """Places in rising order whose keys reach a bound that at least `topk` keys reach; how many, and the bound.

    A row is seen as columns, so that all their maxima are found at once.
    """
    area = keys.size
    parts = 1
    while area % (parts * 2) == 0 and parts * 2 <= max(_LEAST_PART, area // (topk * _PARTS_PER_ENTRY)):
        parts *= 2
    count = area // parts if area // parts >= 2 * topk else area
    maxima[:count] = keys[:count]
    for first in range(count, area, count):
        part = keys[first : first + count]  # numba's loops over slices are vectors
        for column in range(count):
            maxima[column] = max(maxima[column], part[column])
    top = np.int64(maxima[:count].max())
    least = max(1, find_bound(maxima[:count], topk, 0, top))
    size = 0
    for column in range(count):
        if maxima[column] >= least:
            for place in range(column, area, count):
                if keys[place] >= least:
                    near[size] = place
                    size += 1
    near[:size].sort()
    return size, least


@compile_loops
def select(
    row: Floats, topk: int, keys: NDArray[np.int32], maxima: NDArray[np.int32], near: NDArray[np.int32],
    indices: NDArray[np.int32],
) -> int:  # fmt: skip
    """The places of the `topk` largest of a row, as `transform.select`; how many there are."""
    raw = row.view(np.int32)
    for place in range(row.size):
        key = raw[place] & np.int32(0x7FFFFFFF)
        keys[place] = key if key < np.int32(_INFINITY) else np.int32(0)
    size, least = find_candidates(keys, topk, maxima, near)
    for entry in range(size):
        maxima[entry] = keys[near[entry]]
    bound = find_bound(maxima[:size], topk, least, _INFINITY) if size > topk else least - 1
    ties = topk
    for entry in range(size):
        ties -= maxima[entry] > bound
    kept = 0
    for entry in range(size):
        if maxima[entry] > bound or (maxima[entry] == bound and ties > 0):
            ties -= maxima[entry] == bound
            indices[kept] = near[entry]
            kept += 1
    return kept


@compile_loops
def compress_chunks(
    gradient: Floats, corner: Corner, lr: np.float32, memory: Floats, decay: np.float32, vertical: Program,
    horizontal: Program, indices: NDArray[np.int32], values: Floats, start: int, stop: int,
) -> None:  # fmt: skip
    """Some chunks of a rectangle of gradients: transform, add to the momentum, select."""
    height, width = gradient.shape[1], gradient.shape[3]
    area, topk = height * width, indices.shape[1]
    upright, turned = np.empty((height, width), np.float32), np.empty((width, height), np.float32)
    keys, maxima, near = np.empty(area, np.int32), np.empty(area, np.int32), np.empty(area, np.int32)
    for chunk in range(start, stop):
        strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
        for i in range(height):
            for j in range(width):
                upright[i, j] = gradient[strip, i, column, j] * lr
        run(vertical, upright)
        turn(upright, vertical, turned)
        run(horizontal, turned)
        turn(turned, horizontal, upright)
        flat, row = upright.reshape(area), memory[chunk]
        for place in range(area):
            row[place] = np.float32(np.float32(decay * row[place]) + flat[place])
        size = select(row, topk, keys, maxima, near, indices[chunk])
        for entry in range(size):
            values[chunk, entry] = row[indices[chunk, entry]]


@compile_loops
def add_lines(
    indices: NDArray[np.int32], values: NDArray[np.int8], chunk: int, codes: NDArray[np.int32],
    averages: NDArray[np.int32], basis: NDArray[np.int32], lines: NDArray[np.int32], used: NDArray[np.bool_],
) -> bool:  # fmt: skip
    """Average the votes of a chunk and invert its rows, exactly; whether there are votes. `codes` is zero again."""
    voters, _, topk = indices.shape
    area, width = lines.size, lines.shape[1]
    shift = 0
    while width >> shift > 1:  # a division for each vote would take longer than the rest
        shift += 1
    used[:] = False
    for voter in range(voters):
        for entry in range(topk):
            place = indices[voter, chunk, entry]
            if place == area:
                break
            codes[place] += 2 * voters + 1 + values[voter, chunk, entry]
    has_votes = False
    for voter in range(voters):
        for entry in range(topk):
            place = indices[voter, chunk, entry]
            if place == area:
                break
            has_votes = True
            mean = averages[codes[place]]
            codes[place] = 0
            if mean == 0:
                continue
            u, v = place >> shift, place & (width - 1)
            if not used[u]:
                used[u] = True
                lines[u] = 0
            line, wave = lines[u], basis[v]
            for j in range(width):
                line[j] += mean * wave[j]
    return has_votes


@compile_loops
def _settle(
    i: int, wave: Floats, bounds: Floats, lines: NDArray[np.int32], used: NDArray[np.bool_],
    basis: NDArray[np.int64], lr: np.float32, weight: Floats,
) -> None:  # fmt: skip
    """Move the weights of row `i` whose signs the rounded pass leaves open, by the exact sums."""
    for j in range(wave.size):
        if abs(wave[j]) <= bounds[j]:
            total = np.int64(0)
            for u in range(used.size):
                if used[u]:
                    total += basis[u, i] * np.int64(lines[u, j])
            if total:
                weight[j] -= lr if total > 0 else -lr


@compile_loops
def apply_chunks(
    weights: Floats, corner: Corner, indices: NDArray[np.int32], values: NDArray[np.int8],
    averages: NDArray[np.int32], bases: tuple[NDArray[np.int32], NDArray[np.int64]], inverse: Program,
    error: np.float32, lr: np.float32, start: int, stop: int,
) -> None:  # fmt: skip
    """Move some chunks of a rectangle of weights by the votes [payloads, chunks, k]."""
    height, width = weights.shape[1], weights.shape[3]
    codes, used = np.zeros(height * width, np.int32), np.zeros(height, np.bool_)
    lines, waves = np.zeros((height, width), np.int32), np.empty((height, width), np.float32)
    bounds = np.empty(width, np.float32)
    for chunk in range(start, stop):
        if not add_lines(indices, values, chunk, codes, averages, bases[0], lines, used):
            continue
        bounds[:] = 0
        for u in range(height):
            if not used[u]:
                waves[inverse.places[u]] = 0
                continue
            line, wave, scale = lines[u], waves[inverse.places[u]], inverse.scales[u]
            for j in range(width):
                wave[j] = np.float32(line[j]) * scale
                bounds[j] += abs(np.float32(line[j]))
        for j in range(width):
            bounds[j] *= error
        run(inverse, waves)
        strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
        for i in range(height):
            wave, weight = waves[i], weights[strip, i, column]
            for j in range(width):
                step = lr if wave[j] > bounds[j] else np.float32(0)
                weight[j] -= -lr if wave[j] < -bounds[j] else step
            open_signs = np.int64(0)
            for j in range(width):
                open_signs += np.int64(abs(wave[j]) <= bounds[j])
            if open_signs:
                _settle(i, wave, bounds, lines, used, bases[1], lr, weight)


@compile_loops
def move_ahead(
    weights: Floats, corner: Corner, memory: Floats, lr: np.float32, vertical: Program, horizontal: Program,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Move some chunks of a rectangle of weights by -lr times the sign of the momentum as weights."""
    height, width = weights.shape[1], weights.shape[3]
    upright, turned = np.empty((height, width), np.float32), np.empty((width, height), np.float32)
    for chunk in range(start, stop):
        row = memory[chunk].reshape(height, width)
        for u in range(height):
            for j in range(width):
                upright[vertical.places[u], j] = row[u, j] * vertical.scales[u]
        run(vertical, upright)
        turn_back(upright, horizontal, turned)
        run(horizontal, turned)
        strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
        for i in range(height):
            for j in range(width):
                wave = turned[j, i]
                step = lr if wave > 0 else np.float32(0)
                weights[strip, i, column, j] -= -lr if wave < 0 else step


def get_corner(tile: Tile) -> Corner:
    return tile.strips.start, tile.columns.start, tile.shape[1]


def compress(
    gradient: torch.Tensor, tile: Tile, lr: float, memory: torch.Tensor, decay: float, chosen: Sequence[torch.Tensor]
) -> None:
    """Of a tile of gradients [strips, h, columns, w]; `chosen` are its indices, full of padding, and values 0."""
    _, height, _, width = gradient.shape
    vertical, horizontal = make_programs(height)[0], make_programs(width)[0]
    given, rows, (indices, values) = gradient.numpy(), memory.numpy(), (part.numpy() for part in chosen)
    factors = np.float32(lr), rows, np.float32(decay)

    def run_part(start: int, stop: int) -> None:
        compress_chunks(given, get_corner(tile), *factors, vertical, horizontal, indices, values, start, stop)

    share(tile.chunks, run_part)


def apply(
    weights: torch.Tensor, tile: Tile, votes: Sequence[ChunkSets], averages: NDArray[np.int32], lr: float
) -> None:
    """Move a tile of weights [strips, h, columns, w] by the sets of its chunks."""
    _, height, _, width = weights.shape
    _, inverse, rounding = make_programs(height)
    bases = get_integer_basis(width).astype(np.int32), get_integer_basis(height).astype(np.int64)
    # of the basis on record, which is rounded, and of the fast inverse and its input; the last of sums of magnitudes
    error = (2.0 ** -(BASIS_BITS + 1) + (rounding + 2) * 2.0**-24 * float(inverse.scales.max())) * 1.01
    sets = np.stack([one.indices for one in votes]), np.stack([one.values for one in votes])
    given, factors = weights.numpy(), (np.float32(error), np.float32(lr))

    def run_part(start: int, stop: int) -> None:
        apply_chunks(given, get_corner(tile), *sets, averages, bases, inverse, *factors, start, stop)

    share(tile.chunks, run_part)


def look_ahead(weights: torch.Tensor, tile: Tile, memory: torch.Tensor, lr: float) -> None:
    """Move a tile of weights [strips, h, columns, w] by the momentum of its chunks."""
    _, height, _, width = weights.shape
    programs = make_programs(height)[1], make_programs(width)[1]
    given, rows = weights.numpy(), memory.numpy()

    def run_part(start: int, stop: int) -> None:
        move_ahead(given, get_corner(tile), rows, np.float32(lr), *programs, start, stop)

    share(tile.chunks, run_part)
