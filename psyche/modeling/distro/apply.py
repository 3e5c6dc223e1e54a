"""Applying decided payloads, exactly: the same bytes on every device, thread count and order.

Votes are averaged in fixed point, the inverse runs in float64 on integers that it holds exactly,
and the sign of an exact integer moves the weight in one separate, correctly rounded operation.

Full-value mode goes through the same steps with rounded float64 values. It is not exact across
devices, and the state digest of such a run covers the applied set only.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from psyche.core.plan import PlanGroup, TransformPlan
from psyche.modeling.distro.basis import VOTE_BITS, check_exact, compute_dct, get_integer_basis
from psyche.modeling.distro.blocks import Block, compute_blocks, get_block_elements, iterate_chunks
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.transform import multiply_both

SPARSE_VOTES: Final = 30  # up to so many votes in a chunk only the distinct rows are inverted


def get_decay_factor(lr: float, weight_decay: float) -> float:
    """f = float32(1 - lr * wd), which every member multiplies every weight with."""
    return float(np.float32(1.0 - lr * weight_decay))


@torch.no_grad()
def decay_weights(weights: Sequence[torch.Tensor], lr: float, weight_decay: float) -> None:
    """w = f32(w * f), in place; an operation of its own, never fused with the update."""
    if weight_decay == 0.0:
        return
    factor = get_decay_factor(lr, weight_decay)
    for weight in weights:
        weight.mul_(factor)


@lru_cache(maxsize=64)
def _get_averages(voters: int, device: torch.device) -> torch.Tensor:
    """Fixed-point means by code, float64: entry count * (2 voters + 1) + sum.

    The mean is sum * 2^10 / count, rounded half away from zero.
    """
    count = np.arange(voters + 1, dtype=np.int64)[:, None]
    total = np.arange(-voters, voters + 1, dtype=np.int64)[None, :]
    double = 2 * np.maximum(count, 1)
    rounded = np.sign(total) * (((np.abs(total) << (VOTE_BITS + 1)) + double // 2) // double)
    # Codes begin at sum = -voters of count 0; rolled, so that code 0 means no vote at all.
    table = np.roll(np.where(np.abs(total) <= count, rounded, 0).reshape(-1), -voters)
    return torch.from_numpy(table.astype(np.float64)).to(device)


@lru_cache(maxsize=256)
def _get_inverse_basis(edge: int, one_bit: bool, device: torch.device) -> torch.Tensor:
    """Integer basis (1-bit mode) or float64 DCT, float64 [edge, edge]."""
    basis = get_integer_basis(edge).astype(np.float64) if one_bit else compute_dct(edge)
    return torch.from_numpy(basis).to(device)


class Applier:
    """Applies payloads to one set of weights, with buffers made once.

    Args:
        plan: the transform plan.
        strips: the fp32 weights as strips (`blocks.view_all_strips`), moved in place.

    Raises:
        TrainerError: a chunk whose inverse would not be exact.
    """

    def __init__(self, plan: TransformPlan, strips: Sequence[torch.Tensor]) -> None:
        for group in plan.groups:
            check_exact(*group.edges)
        self._plan = plan
        self._strips = strips
        self._device = strips[0].device
        elements = get_block_elements(self._device)
        self._blocks = [compute_blocks(plan, group, elements) for group in plan.groups]
        largest = max(elements, *(group.area for group in plan.groups))
        self._codes = torch.empty(largest, dtype=torch.int32, device=self._device)
        self._sums = torch.empty(0 if plan.one_bit else largest, dtype=torch.float64, device=self._device)
        self._means, self._scratch, self._inverse = (
            torch.empty(largest, dtype=torch.float64, device=self._device) for _ in range(3)
        )
        self._steps = torch.empty(largest, dtype=torch.float32, device=self._device)

    @torch.no_grad()
    def apply(self, payloads: Sequence[Sequence[ChunkSets]], lr: float) -> None:
        """Move every weight of a chunk with votes by -lr times the sign of the averaged, inverted votes.

        `payloads` are decoded payloads in ascending batch start. In full-value mode the order matters
        in the last bits; in 1-bit mode it does not.
        """
        if not payloads:
            return
        for place, group in enumerate(self._plan.groups):
            for block in self._blocks[place]:
                votes = [payload[place] for payload in payloads]
                inverse = self.invert_block(group, block, votes)
                self._update(block, inverse, lr)

    def invert_block(self, group: PlanGroup, block: Block, votes: Sequence[ChunkSets]) -> torch.Tensor:
        """The inverse of the averaged votes of a block, float64 [chunks, h, w], valid until the next call."""
        indices = self._load([sets.indices for sets in votes], block)
        values = self._load([sets.values for sets in votes], block)
        present = indices < group.area
        # Missing entries go to a real place with a vote of nothing.
        places = indices.clamp(max=group.area - 1).to(torch.int64)
        entries = len(votes) * group.k
        if entries <= SPARSE_VOTES and 2 * entries <= group.edges[0]:
            return self._invert_rows(group, block.chunks, places, values, present)
        places += torch.arange(block.chunks, device=self._device)[None, :, None] * group.area
        count = block.chunks * group.area
        self._average(group, places, values, present, count)
        shape = (block.chunks, *group.edges)
        return multiply_both(
            self._means[:count].view(shape),
            self._basis(group, 0).T,
            self._basis(group, 1),
            self._inverse[:count].view(shape),
            self._scratch[:count].view(shape),
        )

    def _basis(self, group: PlanGroup, axis: int) -> torch.Tensor:
        return _get_inverse_basis(group.edges[axis], group.one_bit, self._device)

    def _load(self, arrays: Sequence[np.ndarray], block: Block) -> torch.Tensor:
        """One block of all payloads, [payloads, chunks, k]."""
        return torch.from_numpy(np.stack([array[block.rows] for array in arrays])).to(self._device)

    def _average(
        self, group: PlanGroup, places: torch.Tensor, values: torch.Tensor, present: torch.Tensor, count: int
    ) -> None:
        """Fill the first `count` means: per place the mean over those who voted there, zero elsewhere."""
        flat, means, codes = places.view(-1), self._means[:count], self._codes[:count].zero_()
        if group.one_bit:
            voters = places.shape[0]
            # One sum holds the number of votes and their balance: code = count * (2 voters + 1) + sum.
            votes = present.to(torch.int32).mul_(2 * voters + 1).add_(values)
            codes.scatter_add_(0, flat, votes.view(-1))
            torch.index_select(_get_averages(voters, self._device), 0, codes, out=means)
            return
        sums = self._sums[:count].zero_()
        sums.scatter_add_(0, flat, values.to(torch.float64).view(-1))
        codes.scatter_add_(0, flat, present.to(torch.int32).view(-1))
        torch.div(sums, codes.clamp_(min=1), out=means)

    def _invert_rows(
        self, group: PlanGroup, chunks: int, places: torch.Tensor, values: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """The inverse by way of the distinct rows (vertical frequencies) that have votes; same integers."""
        height, width = group.edges
        chunk = torch.arange(chunks, device=self._device)[None, :, None]
        rows = chunk * height + places // width
        used = torch.zeros(chunks * height, dtype=torch.int32, device=self._device)
        used.scatter_add_(0, rows.view(-1), present.to(torch.int32).view(-1))
        is_used = (used > 0).view(chunks, height)
        sizes = is_used.sum(dim=1)
        most = max(1, int(sizes.max()))
        # Row u of a chunk gets the slot of its rank among the chunk's used rows.
        slots = (is_used.cumsum(dim=1) - 1).clamp_(min=0) + torch.arange(chunks, device=self._device)[:, None] * most
        compact = slots.view(-1)[rows.view(-1)].view(rows.shape) * width + places % width
        count = chunks * most * width
        self._average(group, compact, values, present, count)
        lines = torch.mm(
            self._means[:count].view(-1, width), self._basis(group, 1), out=self._scratch[:count].view(-1, width)
        )
        columns = torch.zeros((chunks * most, height), dtype=torch.float64, device=self._device)
        line, frequency = slots[is_used], is_used.nonzero()[:, 1]
        columns[line] = self._basis(group, 0)[frequency]
        inverse = self._inverse[: chunks * group.area].view(chunks, height, width)
        return torch.bmm(
            columns.view(chunks, most, height).transpose(1, 2), lines.view(chunks, most, width), out=inverse
        )

    def _update(self, block: Block, inverse: torch.Tensor, lr: float) -> None:
        """w = f32(w - lr * s), the step rounded by itself; a step of zero is +0 and changes no bit."""
        steps = self._steps[: inverse.numel()].view(inverse.shape)
        steps.copy_(inverse).sign_().mul_(lr)
        for weight, step in iterate_chunks(block, self._strips, steps):
            weight.sub_(step)
