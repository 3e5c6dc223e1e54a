"""The exact apply of decided payloads: the resulting weights do not depend on device, thread count or order.

Votes are averaged in fixed point. The inverse transform runs in float64 on integers that float64 represents exactly.
The sign of the resulting integer moves the weight in one separate, correctly rounded operation.

Full-value mode takes the same steps with rounded float64 values. It is not exact across devices, and the state digest
of such a run covers only the applied set.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.core.encoding.plan import PlanGroup, TransformPlan
from psyche.modeling.distro.basis import VOTE_BITS, check_exact, compute_dct, get_integer_basis
from psyche.modeling.distro.blocks import KERNEL_BLOCK, Block, compute_blocks, get_block_elements, iterate_chunks
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.compiled import find_fast_distro
from psyche.modeling.distro.loops.fast_dct import can_be_fast

SPARSE_SHARE: Final = 32  # up to area/32 votes per chunk are added line by line instead of by a dense first pass


def get_decay_factor(lr: float, weight_decay: float) -> float:
    """f = float32(1 - lr * wd), the factor by which every member multiplies every weight."""
    return float(np.float32(1.0 - lr * weight_decay))


@torch.no_grad()
def decay_weights(weights: Sequence[torch.Tensor], lr: float, weight_decay: float) -> None:
    """w = f32(w * f), in place; a separate operation, never fused with the update."""
    if weight_decay == 0.0:
        return
    factor = get_decay_factor(lr, weight_decay)
    for weight in weights:
        weight.mul_(factor)


@lru_cache(maxsize=64)
def _get_averages(voters: int, device: torch.device) -> torch.Tensor:
    """Table of fixed-point means, float64; the index (code) is count * (2 voters + 1) + sum.

    The mean is sum * 2^10 / count, rounded half away from zero.
    """
    count = np.arange(voters + 1, dtype=np.int64)[:, None]
    total = np.arange(-voters, voters + 1, dtype=np.int64)[None, :]
    double = 2 * np.maximum(count, 1)
    rounded = np.sign(total) * (((np.abs(total) << (VOTE_BITS + 1)) + double // 2) // double)
    # The table begins at count 0, sum -voters; rolling it makes code 0 mean "no votes".
    table = np.roll(np.where(np.abs(total) <= count, rounded, 0).reshape(-1), -voters)
    return torch.from_numpy(table.astype(np.float64)).to(device)


@lru_cache(maxsize=64)
def _get_integer_averages(voters: int) -> NDArray[np.int32]:
    return _get_averages(voters, torch.device("cpu")).to(torch.int32).numpy()


@lru_cache(maxsize=256)
def _get_inverse_basis(edge: int, one_bit: bool, device: torch.device) -> torch.Tensor:
    """Integer basis (1-bit mode) or float64 DCT, float64 [edge, edge]."""
    basis = get_integer_basis(edge).astype(np.float64) if one_bit else compute_dct(edge)
    return torch.from_numpy(basis).to(device)


class Applier:
    """Applies payloads in place to `strips`, the fp32 weights (`blocks.view_all_strips`); allocates buffers once."""

    def __init__(self, plan: TransformPlan, strips: Sequence[torch.Tensor]) -> None:
        for group in plan.groups:
            check_exact(*group.edges)
        self._plan = plan
        self._strips = strips
        self.kernels = find_fast_distro(plan, strips[0].device.type)
        # an Apple GPU has no float64
        self._device = torch.device("cpu") if strips[0].device.type == "mps" else strips[0].device
        elements = get_block_elements(self._device)
        self.blocks = [
            compute_blocks(plan, group, elements if self.find_kernels(group) is None else KERNEL_BLOCK)
            for group in plan.groups
        ]
        self.largest = largest = max(elements, *(group.area for group in plan.groups))
        # One extra place collects the padding entries of the sets.
        self._codes, self._owners = (torch.empty(largest + 1, dtype=torch.int32, device=self._device) for _ in range(2))
        self._sums = torch.empty(0 if plan.one_bit else largest + 1, dtype=torch.float64, device=self._device)
        self._means, self._scratch, self._inverse = (
            torch.empty(largest, dtype=torch.float64, device=self._device) for _ in range(3)
        )
        self._steps = torch.empty(largest, dtype=torch.float32, device=self._device)

    @torch.no_grad()
    def apply(self, payloads: Sequence[Sequence[ChunkSets]], lr: float) -> None:
        """Move every weight of a chunk with votes by -lr times the sign of the averaged, inverted votes.

        `payloads` are decoded payloads in ascending batch start. In full-value mode their order affects the last
        bits; in 1-bit mode it has no effect.
        """
        if not payloads:
            return
        for place, group in enumerate(self._plan.groups):
            votes = [payload[place] for payload in payloads]
            for block in self.blocks[place]:
                if (kernels := self.find_kernels(group)) is not None:
                    averages = _get_integer_averages(len(votes))
                    for tile in block.tiles:
                        sets = [one.take(tile.get_rows(block)) for one in votes]
                        kernels.apply(self._strips[tile.tensor], tile, sets, averages, lr)
                    continue
                self._update(block, self.invert_block(group, block, votes), lr)

    def find_kernels(self, group: PlanGroup) -> Any:
        """The compiled loops, if they can do the chunks of this group."""
        return self.kernels if all(can_be_fast(edge) for edge in group.edges) else None

    def invert_block(self, group: PlanGroup, block: Block, votes: Sequence[ChunkSets]) -> torch.Tensor:
        """The inverse of the averaged votes of a block, float64 [chunks, h, w], valid until the next call.

        Internally the rows u of all chunks are contiguous, [h, chunks, w], so the vertical pass is one large product.
        """
        height, width = group.edges
        indices = self._load([sets.indices for sets in votes], block)
        values = self._load([sets.values for sets in votes], block).view(-1)
        present = indices < group.area
        count, line = block.chunks * group.area, block.chunks * width
        chunk = torch.arange(block.chunks, device=self._device)[None, :, None]
        places = indices + (indices // width) * (line - width) + chunk * width
        places = torch.where(present, places, count).view(-1)
        self._count_votes(places, values, present.view(-1), len(votes), count)
        lines, inverse = self._scratch[:count].view(-1, width), self._inverse[:count].view(-1, width)
        lines = inverse if height == 1 else lines
        if len(votes) * group.k * SPARSE_SHARE <= group.area:
            self._add_lines(group, places, len(votes), lines)
        else:
            means = self._average(slice(count), len(votes), self._means[:count])
            torch.mm(means.view(-1, width), self._basis(group, 1), out=lines)
        if height > 1:
            torch.mm(self._basis(group, 0).T, lines.view(height, line), out=inverse.view(height, line))
        return inverse.view(height, block.chunks, width).permute(1, 0, 2)

    def _basis(self, group: PlanGroup, axis: int) -> torch.Tensor:
        return _get_inverse_basis(group.edges[axis], group.one_bit, self._device)

    def _load(self, arrays: Sequence[np.ndarray], block: Block) -> torch.Tensor:
        """Load one block of all payloads to the device, [payloads, chunks, k]."""
        return torch.from_numpy(np.stack([array[block.rows] for array in arrays])).to(self._device)

    def _count_votes(
        self, places: torch.Tensor, values: torch.Tensor, present: torch.Tensor, voters: int, count: int
    ) -> None:
        """Sum up the votes for every place; `places` is int64 [entries], `count` marks padding."""
        codes = self._codes[: count + 1].zero_()
        if self._plan.one_bit:
            # One integer holds both the number and the sum of votes: code = number * (2 voters + 1) + sum.
            codes.scatter_add_(0, places, present.to(torch.int32).mul_(2 * voters + 1).add_(values))
            return
        codes.scatter_add_(0, places, present.to(torch.int32))
        self._sums[: count + 1].zero_().scatter_add_(0, places, values.to(torch.float64))

    def _average(self, places: torch.Tensor | slice, voters: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Means of the votes at `places`, float64; zero at places without votes."""
        codes = self._codes[places]
        if self._plan.one_bit:
            averages = _get_averages(voters, self._device)
            return torch.index_select(averages, 0, codes, out=out)
        return torch.div(self._sums[places], codes.clamp(min=1), out=out)

    def _add_lines(self, group: PlanGroup, places: torch.Tensor, voters: int, lines: torch.Tensor) -> None:
        """Make the first pass vote by vote: add the mean times row v of the basis to line u.

        `lines` is float64 [h * chunks, w]; the result equals the dense product with all means.
        """
        # A place with several votes must add its mean only once, so one vote owns it; padding entries own nothing.
        numbers = torch.arange(places.numel(), dtype=torch.int32, device=self._device)
        owners = self._owners[: lines.numel() + 1].scatter_(0, places, numbers)
        places = places[(owners[places] == numbers) & (places < lines.numel())]
        width = group.edges[1]
        brought = self._basis(group, 1)[places % width].mul_(self._average(places, voters)[:, None])
        lines.zero_().index_add_(0, places // width, brought)

    def _update(self, block: Block, inverse: torch.Tensor, lr: float) -> None:
        """w = f32(w - lr * s); the step is rounded separately, and a zero step is +0 and changes no bit."""
        chunks, height, width = inverse.shape
        steps = self._steps[: inverse.numel()].view(height, chunks, width).permute(1, 0, 2)
        steps.copy_(inverse).sign_().mul_(lr)
        for weight, step in iterate_chunks(block, self._strips, steps):
            weight.sub_(step.to(weight.device))
