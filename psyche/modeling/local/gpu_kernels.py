"""The exchange of local steps on a GPU (Triton), with the bytes of `exchange`: one program a chunk.

Numbers are handled by their bits and added as integers, so no order of threads shows in the result. Whether that holds
on a device is looked at once, before it is used there.
"""

# pyright: reportArgumentType=false

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
import triton
import triton.language as tl

from psyche.modeling.distro.blocks import Tile
from psyche.modeling.distro.codec import LEAST_EXPONENT, MEAN_BITS, UNIT_BITS, ChunkSets

_WARPS: Final = 8
_INFINITY = tl.constexpr(0x7F800000)  # magnitudes from this bit pattern on are infinite or NaN
_ROOT_HALF_BITS = tl.constexpr(0x3FE6A09E667F3BCD)  # of the float64
_LEAST_EXPONENT = tl.constexpr(LEAST_EXPONENT)
_MEAN_BITS = tl.constexpr(MEAN_BITS)
_UNIT_BITS = tl.constexpr(UNIT_BITS)
# Of a rectangle of chunks: its first strip and column, its columns, the tensor's, and the edges of a chunk.
_Corner = tuple[int, int, int, int, int, int]


@triton.jit
def _find_places(chunk: tl.tensor, places: tl.tensor, corner: tl.tuple) -> tl.tensor:
    """Where the numbers of a chunk are in their tensor."""
    strip, column = corner[0] + chunk // corner[2], corner[1] + chunk % corner[2]
    line = (strip * corner[4] + places // corner[5]).to(tl.int64)
    return (line * corner[3] + column) * corner[5] + places % corner[5]


@triton.jit
def _find_bound(keys: tl.tensor, topk: tl.tensor) -> tl.tensor:
    """The largest key that at least `topk` reach, bit by bit."""
    bound = tl.zeros((), tl.int32)
    for place in range(31):
        higher = bound | (0x40000000 >> place)
        bound = tl.where(tl.sum((keys >= higher).to(tl.int32)) >= topk, higher, bound)
    return bound


@triton.jit
def _find_exponent(keys: tl.tensor, largest: tl.tensor, size: tl.tensor, bits: tl.tensor) -> tl.tensor:
    """`exchange.quantize`: the exponent of values with these keys; 0 of those that are not kept."""
    digits = (largest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
    top = tl.where(largest >> 23 > 0, (largest >> 23) - 126, digits - 149)
    power = keys >> 23
    mantissa = tl.where(power > 0, keys & 0x7FFFFF | 0x800000, keys).to(tl.int64)
    shift = tl.maximum(power, 1) + _MEAN_BITS - 150 - top
    units = tl.where(shift >= 0, mantissa << tl.maximum(shift, 0), mantissa >> tl.minimum(tl.maximum(-shift, 0), 63))
    total = tl.sum(units).to(tl.float64)
    mean = (total / tl.maximum(size, 1).to(tl.float64)).to(tl.int64, bitcast=True)
    is_below = (mean & 0xFFFFFFFFFFFFF | 0x3FE0000000000000) < _ROOT_HALF_BITS
    nearest = ((mean >> 52) - 1022).to(tl.int32) - is_below.to(tl.int32) + top - _MEAN_BITS
    return tl.where(size > 0, tl.minimum(0, tl.maximum(_LEAST_EXPONENT, nearest - (bits - 1))), 0)


@triton.jit
def _compress(
    memory: tl.tensor, deltas: tl.tensor, decay: tl.tensor, indices: tl.tensor, values: tl.tensor,
    exponents: tl.tensor, corner: tl.tuple, bits: tl.tensor, topk: tl.tensor, lanes: tl.constexpr, slots: tl.constexpr,
) -> None:  # fmt: skip
    chunk, area = tl.program_id(0), corner[4] * corner[5]
    places = tl.arange(0, lanes)
    is_inside = places < area
    row = memory + chunk.to(tl.int64) * area + places
    value = tl.load(decay) * tl.load(row, is_inside, 0.0)
    value = value + tl.load(deltas + _find_places(chunk, places, corner), is_inside, 0.0)
    tl.store(row, value, is_inside)
    keys = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    keys = tl.where(keys < _INFINITY, keys, 0)
    bound = _find_bound(keys, topk)
    above, ties = keys > bound, (keys == bound) & (keys > 0)
    room = topk - tl.sum(above.to(tl.int32))
    kept = above | (ties & (tl.cumsum(ties.to(tl.int32), 0) <= room))
    size = tl.sum(kept.to(tl.int32))
    exponent = _find_exponent(tl.where(kept, keys, 0), tl.max(tl.where(kept, keys, 0)), size, bits)
    is_high = (bits > 1) & (keys >= (exponent + 128) << 23)
    unit = ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    rounded = tl.where(is_high, 3.0, 1.0) * tl.where(value < 0, -unit, unit)
    first = chunk.to(tl.int64) * topk
    entries = first + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(indices + entries, places, kept)
    tl.store(values + entries, rounded, kept)
    padding = tl.arange(0, slots)
    is_padding = (padding >= size) & (padding < topk)
    tl.store(indices + first + padding, area, is_padding)
    tl.store(values + first + padding, 0.0, is_padding)
    tl.store(exponents + chunk, exponent.to(tl.int8))


@triton.jit
def _add(
    sums: tl.tensor, indices: tl.tensor, levels: tl.tensor, exponents: tl.tensor, steps: tl.tensor, chunks: tl.tensor,
    area: tl.tensor, topk: tl.tensor, slots: tl.constexpr,
) -> None:  # fmt: skip
    """Add a member's set of a chunk to the chunk's sums, in units of 2^-32."""
    chunk, member = tl.program_id(0), tl.program_id(1)
    entries = tl.arange(0, slots)
    row = member.to(tl.int64) * chunks + chunk
    places = tl.load(indices + row * topk + entries, entries < topk, area)
    shift = tl.load(exponents + row).to(tl.int64) + _UNIT_BITS
    units = tl.load(levels + row * topk + entries, entries < topk, 0).to(tl.int64) * (tl.load(steps + member) << shift)
    tl.atomic_add(sums + chunk.to(tl.int64) * area + places, units, places < area)


@triton.jit
def _move(weights: tl.tensor, sums: tl.tensor, rate: tl.tensor, corner: tl.tuple, lanes: tl.constexpr) -> None:
    chunk, area = tl.program_id(0), corner[4] * corner[5]
    places = tl.arange(0, lanes)
    is_inside = places < area
    units = tl.load(sums + chunk.to(tl.int64) * area + places, is_inside, 0)
    at = weights + _find_places(chunk, places, corner)
    step = (units.to(tl.float64) * tl.load(rate)).to(tl.float32)
    tl.store(at, tl.load(at, is_inside, 0.0) - step, is_inside & (units != 0))


def compress(
    memory: torch.Tensor, deltas: torch.Tensor, tile: Tile, decay: float, bits: int, chosen: Sequence[torch.Tensor]
) -> None:
    """Add a tile of deltas [strips, h, columns, w] to its decayed error memory, in place, and choose what is sent.

    `chosen` receives indices, values and exponents.
    """
    factor, topk = torch.tensor([decay], dtype=torch.float32, device=memory.device), chosen[0].shape[1]
    sizes = {"lanes": triton.next_power_of_2(memory.shape[1]), "slots": triton.next_power_of_2(topk)}
    given = memory, deltas, factor, *chosen, _get_corner(tile, deltas), bits, topk
    _launch(_compress, (tile.chunks,), *given, **sizes)


def apply(weights: torch.Tensor, tile: Tile, votes: Sequence[ChunkSets], steps: Sequence[int], rate: float) -> None:
    """Move a tile of weights [strips, h, columns, w] by the sets of its chunks, in place."""
    device, corner = weights.device, _get_corner(tile, weights)
    area = corner[-2] * corner[-1]
    indices, levels = (np.stack([getattr(one, name) for one in votes]) for name in ("indices", "values"))
    exponents = np.stack([one.exponents for one in votes if one.exponents is not None])
    sets = [torch.from_numpy(part).to(device) for part in (indices, levels, exponents)]
    counts = torch.tensor(steps, dtype=torch.int64, device=device)
    sums = torch.zeros(tile.chunks * area, dtype=torch.int64, device=device)
    topk = indices.shape[2]
    _launch(
        _add, (tile.chunks, len(votes)), sums, *sets, counts, tile.chunks, area, topk,
        slots=triton.next_power_of_2(topk),
    )  # fmt: skip
    factor = torch.tensor([rate], dtype=torch.float64, device=device)
    _launch(_move, (tile.chunks,), weights, sums, factor, corner, lanes=triton.next_power_of_2(area))


def _get_corner(tile: Tile, tensor: torch.Tensor) -> _Corner:
    _, height, columns, width = tensor.shape
    return tile.strips.start, tile.columns.start, tile.shape[1], columns, height, width


def _launch(kernel: Any, grid: tuple[int, ...], *given: Any, **sizes: int) -> None:
    # A fused multiply-add is rounded once, and everybody else rounds twice.
    kernel[grid](*given, **sizes, num_warps=_WARPS, enable_fp_fusion=False)
