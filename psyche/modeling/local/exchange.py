"""The exchange of local steps: compress what a member moved its weights, and apply the mean of all members exactly.

What a payload does not carry stays in the error memory and comes with a later one. All arithmetic on which members must
agree is in integers; rules LS3 and LS4 of `docs/protocol-reference.md`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.limits import MAX_CLIENTS, MAX_INNER_STEPS
from psyche.errors import TrainerError
from psyche.modeling.distro.blocks import (
    KERNEL_BLOCK,
    Block,
    compute_blocks,
    get_block_elements,
    iterate_chunks,
    view_all_strips,
)
from psyche.modeling.distro.codec import (
    HIGH_LEVEL,
    LEAST_EXPONENT,
    MEAN_BITS,
    UNIT_BITS,
    ChunkSets,
    encode_payload,
)
from psyche.modeling.distro.compiled import find_kernels
from psyche.modeling.distro.momentum import Chosen, Momentum
from psyche.modeling.distro.transform import select
from psyche.wire.trainer import SentResult

assert MAX_CLIENTS * MAX_INNER_STEPS * HIGH_LEVEL << UNIT_BITS < 1 << 53, "sums are exact in float64"


class Part(NamedTuple):
    """A member's result of a round: its decoded payload, and the inner steps that it did."""

    sets: Sequence[ChunkSets]
    steps: int


class ErrorMemory(Momentum):
    """What a member moved its weights and no applied result has carried yet, decayed each round (LS3)."""

    def _take_out(self, places: torch.Tensor, values: torch.Tensor, coefficients: torch.Tensor) -> None:
        coefficients.view(-1)[places] -= values


def quantize(values: NDArray[np.float32], bits: int) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """The nearest values that a payload can hold (LS3), for each chunk's selected ones, float32 [chunks, k].

    A value is 1 or, with two bits, 1 or 3, times 2^c; c is such that the middle of the levels is nearest to the mean
    magnitude. The mean is one of integers, so it does not depend on the order of a sum.

    Returns:
        Signed levels, int8 [chunks, k], 0 where `values` is 0; and c, int8 [chunks], 0 for empty chunks.
    """
    magnitudes = np.abs(values).astype(np.float64)
    _, top = np.frexp(magnitudes.max(axis=1))
    units = np.ldexp(magnitudes, (MEAN_BITS - top)[:, None]).astype(np.int64)
    sizes = np.count_nonzero(magnitudes, axis=1)
    fraction, power = np.frexp(units.sum(axis=1) / np.maximum(sizes, 1))
    nearest = power - (fraction < math.sqrt(0.5)) + top - MEAN_BITS  # of the powers of two, by their ratio
    exponents = np.where(sizes, np.clip(nearest - (bits - 1), LEAST_EXPONENT, 0), 0)
    levels = np.sign(values).astype(np.int8)
    if bits > 1:
        levels[magnitudes >= np.ldexp(2.0, exponents)[:, None]] *= HIGH_LEVEL
    return levels, exponents.astype(np.int8)


def get_values(sets: ChunkSets) -> NDArray[np.float32]:
    """The values that decoded sets stand for, float32 [chunks, k]: exact, and 0 in padding."""
    assert sets.exponents is not None, "a payload of local steps has exponents"
    return np.ldexp(sets.values.astype(np.float32), sets.exponents[:, None].astype(np.int32))


def join_sets(parts: Sequence[ChunkSets]) -> ChunkSets:
    """The sets of several runs of chunks as one."""
    exponents = [part.exponents for part in parts if part.exponents is not None]
    indices, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("indices", "values"))
    return ChunkSets(indices, values, np.concatenate(exponents))


class Exchange:
    """What a member sends and applies. `parameters` are its fp32 masters by name, which `apply` changes in place."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], plan: TransformPlan, error_decay: float) -> None:
        assert plan.scaled_bits, "a plan of local steps"
        self._plan = plan
        self._strips = view_all_strips(plan, parameters)
        device = self._strips[0].device
        self._kernels = find_kernels("psyche.modeling.local.kernels") if device.type == "cpu" else None
        self.memory = ErrorMemory(plan, error_decay, device)
        # an Apple GPU has no float64
        self._device = torch.device("cpu") if device.type == "mps" else device
        elements = get_block_elements(device) if self._kernels is None else KERNEL_BLOCK
        self._blocks = [compute_blocks(plan, group, elements) for group in plan.groups]
        largest = max(elements, *(group.area for group in plan.groups))
        self._gathered = torch.empty(largest, dtype=torch.float32, device=device)
        # One extra place collects the padding entries of the sets.
        self._sums = torch.empty(largest + 1, dtype=torch.float64, device=self._device)

    @torch.no_grad()
    def compress(
        self, deltas: Mapping[str, torch.Tensor], decided: Sequence[SentResult], in_flight: bool, height: int
    ) -> bytes:
        """Add what the inner steps of a round moved, and make a payload of the largest of each chunk.

        `deltas` are start minus end, float32; `decided` and `in_flight` are as in `Momentum.settle`. A delta that is
        missing, of a wrong shape or not finite changes nothing.
        """
        strips = view_all_strips(self._plan, {name: delta.contiguous() for name, delta in deltas.items()})
        for tensor, delta in zip(self._plan.tensors, strips, strict=True):
            # A sum is finite only of finite numbers; in rare cases theirs is not, so they are looked at one by one.
            if not math.isfinite(delta.sum()) and not delta.isfinite().all():
                raise TrainerError(f"inner steps: the change of tensor {tensor.name!r} is not finite")
        self.memory.settle(decided, height, in_flight=in_flight)
        made = [self._compress_group(place, strips) for place in range(len(self._plan.groups))]
        self.memory.record_sent(height, [chosen for _, chosen in made])
        return encode_payload(self._plan, [sets for sets, _ in made])

    def _compress_group(self, place: int, strips: Sequence[torch.Tensor]) -> tuple[ChunkSets, Chosen]:
        made = join_sets([self._compress_block(place, block, strips) for block in self._blocks[place]])
        device = self.memory.coefficients[place].device
        return made, (torch.from_numpy(made.indices).to(device), torch.from_numpy(get_values(made)).to(device))

    def _compress_block(self, place: int, block: Block, strips: Sequence[torch.Tensor]) -> ChunkSets:
        group = self._plan.groups[place]
        if self._kernels is not None:
            memory = self.memory.coefficients[place]
            made = (
                self._kernels.compress(
                    memory[tile.get_rows(block)],
                    strips[tile.tensor],
                    tile,
                    self.memory.decay,
                    group.scaled_bits,
                    group.k,
                )
                for tile in block.tiles
            )
            return join_sets(list(made))
        gathered = self._gathered[: block.chunks * group.area].view(block.chunks, *group.edges)
        for delta, part in iterate_chunks(block, strips, gathered):
            part.copy_(delta)
        indices, values = select(self.memory.decay_block(place, block.rows, gathered), group.k)
        return ChunkSets(indices.cpu().numpy(), *quantize(values.cpu().numpy(), group.scaled_bits))

    @torch.no_grad()
    def apply(self, parts: Sequence[Part], outer_rate: float) -> None:
        """Move the weights by the mean of all members' values, weighted by their inner steps (LS4).

        The result depends neither on the order of `parts` nor on the device. Weights that nobody sent keep their bits.
        """
        if not parts:
            return
        rate = compute_rate(outer_rate, [part.steps for part in parts])
        for place, blocks in enumerate(self._blocks):
            votes = [(part.sets[place], part.steps) for part in parts]
            for block in blocks:
                if self._kernels is None:
                    self._move(place, block, votes, rate)
                    continue
                for tile in block.tiles:
                    sets = [one.take(tile.get_rows(block)) for one, _ in votes]
                    self._kernels.apply(self._strips[tile.tensor], tile, sets, [steps for _, steps in votes], rate)

    def _move(self, place: int, block: Block, votes: Sequence[tuple[ChunkSets, int]], rate: float) -> None:
        group = self._plan.groups[place]
        count = block.chunks * group.area
        sums = self._sums[: count + 1].zero_()
        first = np.arange(block.chunks, dtype=np.int64)[:, None] * group.area
        for sets, steps in votes:
            indices = sets.indices[block.rows]
            places = np.where(indices < group.area, first + indices, count)
            units = torch.from_numpy(compute_units(sets, block.rows, steps)).to(self._device)
            sums.scatter_add_(0, torch.from_numpy(places).view(-1).to(self._device), units.view(-1))
        moves = sums[:count].mul_(rate).to(torch.float32).view(block.chunks, *group.edges)
        for weight, move in iterate_chunks(block, self._strips, moves):
            weight.sub_(move.to(weight.device))


def compute_rate(outer_rate: float, steps: Sequence[int]) -> float:
    """What a sum in units of 2^-32 is multiplied by, as float64: the rate is the float32 on record."""
    return float(np.float32(outer_rate)) / sum(steps) * 2.0**-UNIT_BITS


def compute_units(sets: ChunkSets, rows: slice, steps: int) -> NDArray[np.float64]:
    """The weighted values of some chunks in units of 2^-32, [chunks, k]: integers below 2^45."""
    assert sets.exponents is not None, "a payload of local steps has exponents"
    exponents = sets.exponents[rows, None].astype(np.int32) + UNIT_BITS
    return np.ldexp(sets.values[rows].astype(np.float64) * steps, exponents)
