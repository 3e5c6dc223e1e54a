"""What one round's update does to each tensor: figures for people, which change no bit of a result.

Each is a sum over a tensor's chunks, so those of several ranks add up.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.modeling.distro.blocks import Block, Tile, view_all_strips
from psyche.modeling.distro.momentum import Momentum
from psyche.wire.trainer import TensorStatistics


class Sums(NamedTuple):
    """Of one tensor, or of a part of it: the sum of |update| and of |gradient|, the sum of the squares of the momentum,
    the weights whose update has the sign of its gradient, and all weights.
    """

    update: float = 0.0
    gradient: float = 0.0
    momentum: float = 0.0
    agreeing: float = 0
    weights: float = 0


def add_sums(parts: Iterable[Mapping[str, Sums]]) -> dict[str, Sums]:
    total: dict[str, Sums] = {}
    for part in parts:
        for name, sums in part.items():
            total[name] = Sums(*(a + b for a, b in zip(total.get(name, Sums()), sums, strict=True)))
    return total


def measure_update(
    plan: TransformPlan,
    blocks: Sequence[Sequence[Block]],
    gradients: Mapping[str, torch.Tensor],
    momentum: Momentum,
    invert: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, Sums]:
    """What the last result of `momentum`, made of these gradients, does to each tensor; `invert` makes it weights."""
    strips = view_all_strips(plan, {name: gradient.contiguous() for name, gradient in gradients.items()})
    parts: list[dict[str, Sums]] = []
    for place, group in enumerate(plan.groups):
        indices, values = momentum.get_last_sent(place)
        for block in blocks[place]:
            shape = (block.chunks, *group.edges)
            dense = values.new_zeros((block.chunks, group.area + 1))  # the last place is for padding
            dense.scatter_(1, indices[block.rows].long(), values[block.rows])
            update = invert(dense[:, : group.area].contiguous().view(shape))
            kept = momentum.read(place, block.rows).view(shape)
            parts += (
                {plan.tensors[tile.tensor].name: measure_tile(
                    tile, strips[tile.tensor][tile.strips, :, tile.columns], update, kept)}
                for tile in block.tiles
            )  # fmt: skip
    return add_sums(parts)


def measure_tile(tile: Tile, gradient: torch.Tensor, update: torch.Tensor, momentum: torch.Tensor) -> Sums:
    """Sums of a tile; `gradient` is the tile itself, `update` and `momentum` are its block's, [chunks, h, w]."""
    rows = slice(tile.at, tile.at + tile.chunks)
    moved = update[rows].unflatten(0, tile.shape).permute(0, 2, 1, 3)
    agreeing = int((moved.sign() * gradient.sign() > 0).sum())
    momentum_square = float(momentum[rows].square().sum(dtype=torch.float64))
    return Sums(_sum(moved), _sum(gradient), momentum_square, agreeing, gradient.numel())


def _sum(values: torch.Tensor) -> float:
    return float(values.abs().sum(dtype=torch.float64))


def describe_sums(sums: Mapping[str, Sums]) -> tuple[TensorStatistics, ...]:
    return tuple(
        TensorStatistics(
            name=name, update_energy=one.update, grad_energy=one.gradient, momentum_norm=math.sqrt(one.momentum),
            agreement=one.agreeing / max(1, one.weights),
        )
        for name, one in sorted(sums.items())
    )  # fmt: skip
