"""What one round's update does to each tensor: figures for people, which change no bit of a result.

Each is a sum over a tensor's chunks, so those of several ranks add up.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from psyche.modeling.distro.blocks import Tile
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
