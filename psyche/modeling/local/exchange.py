"""The exchange of local steps: compress what a member moved its weights, and apply the mean of all members exactly.

What a payload does not carry stays in the error memory and comes with a later one. All arithmetic on which members must
agree is in integers; rules LS3 and LS4 of `docs/protocol-reference.md`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from psyche.core.encoding.plan import TransformPlan, compute_plan
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
    decode_payload,
    encode_payload,
)
from psyche.modeling.distro.compiled import find_kernels
from psyche.modeling.distro.momentum import Momentum
from psyche.modeling.distro.statistics import Sums, measure_update
from psyche.modeling.distro.transform import select
from psyche.wire.trainer import SentResult

_log: Final = structlog.get_logger("psyche.kernels")
assert MAX_CLIENTS * MAX_INNER_STEPS * HIGH_LEVEL << UNIT_BITS < 1 << 53, "sums are exact in float64"


class Part(NamedTuple):
    """A member's result of a round: its decoded payload, and the inner steps that it did."""

    sets: Sequence[ChunkSets]
    steps: int


class ErrorMemory(Momentum):
    """What a member moved its weights and no applied result has carried yet, decayed each round (LS3)."""

    taken_out = -1.0


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


@torch.no_grad()
def find_infinite(deltas: Mapping[str, torch.Tensor]) -> list[str]:
    """The tensors with a number that is not finite."""
    # A sum is finite only of finite numbers; in rare cases theirs is not, so they are looked at one by one.
    return [n for n, delta in deltas.items() if not math.isfinite(delta.sum()) and not delta.isfinite().all()]


def check_finite(deltas: Mapping[str, torch.Tensor]) -> None:
    """Raise a TrainerError if inner steps have changed a tensor by what is not finite."""
    if infinite := find_infinite(deltas):
        raise TrainerError(f"inner steps: the change of tensor {infinite[0]!r} is not finite")


class Sent(NamedTuple):
    """What a member sends of a group; `values` float32 [chunks, k] are rounded, so that they have the levels."""

    indices: torch.Tensor
    values: torch.Tensor
    exponents: torch.Tensor

    def take(self, chunks: slice) -> ChunkSets:
        indices, values, exponents = (part[chunks].cpu().numpy() for part in self)
        levels = values * np.ldexp(np.float32(1), -exponents.astype(np.int32))[:, None]
        return ChunkSets(indices, levels.astype(np.int8), exponents)


def get_values(sets: ChunkSets) -> NDArray[np.float32]:
    """The values that decoded sets stand for, float32 [chunks, k]: exact, and 0 in padding."""
    assert sets.exponents is not None, "a payload of local steps has exponents"
    return np.ldexp(sets.values.astype(np.float32), sets.exponents[:, None].astype(np.int32))


def find_exchange_kernels(device: torch.device) -> Any:
    """What computes faster than torch on a device, or None."""
    if device.type == "cpu":
        return find_kernels("psyche.modeling.local.kernels")
    return find_exact_kernels(device) if device.type == "cuda" else None


@cache
def find_exact_kernels(device: torch.device) -> Any:
    """Triton's kernels, if they give the bytes of torch on this device."""
    try:
        kernels = import_module("psyche.modeling.local.gpu_kernels")
        if play_hostile(device, kernels) == play_hostile(device, None):
            return kernels
        reason = "its bytes are not those of torch"
    except Exception as error:  # noqa: BLE001  # Triton needs a compiler on the machine, and raises errors of many kinds
        reason = str(error)
    _log.warning("torch exchanges local steps on this GPU, more slowly, since Triton does not work here", reason=reason)
    return None


def play_hostile(device: torch.device, kernels: Any) -> tuple[bytes, bytes]:
    """Payload and weights of an exchange that rounds, ties, overflows and vanishes wherever numbers can."""
    plan = compute_plan({"w": (32, 32), "x": (20,)}, 16, 20, one_bit=False, scaled_bits=2)
    draw = torch.Generator().manual_seed(0)
    scales = torch.tensor([1e-44, 1e-20, 2.0**-33, 1e-3, 0.25, 1e30])
    weights = {tensor.name: torch.ones(tensor.dims, device=device) for tensor in plan.tensors}
    exchange = Exchange(weights, plan, 0.95, lambda _: kernels)
    parts: list[Part] = []
    for height in range(3):
        deltas = {
            t.name: torch.randn(t.dims, generator=draw).mul(4).round() * scales[(height * 2 + place) % 6]
            for place, t in enumerate(plan.tensors)
        }
        body = exchange.compress({name: delta.to(device) for name, delta in deltas.items()}, (), True, height)
        parts.append(Part(decode_payload(plan, body), 1 + 700 * height))
        exchange.apply(parts, 0.7)
    body = b"".join(encode_payload(plan, part.sets) for part in parts)
    state = (*exchange.memory.coefficients, *weights.values())
    return body, b"".join(tensor.cpu().numpy().tobytes() for tensor in state)


class Exchange:
    """What a member sends and applies. `parameters` are its fp32 masters by name, which `apply` changes in place.

    What is found for their device has `compress` and `apply` of tiles; if it is None, torch does it.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        plan: TransformPlan,
        error_decay: float,
        find: Callable[[torch.device], Any] = find_exchange_kernels,
        host: torch.device | None = None,
    ) -> None:
        assert plan.scaled_bits, "a plan of local steps"
        self._plan = plan
        self._strips = view_all_strips(plan, parameters)
        device = self._strips[0].device
        self._kernels = kernels = find(device)
        loops = find_kernels("psyche.modeling.distro.kernels") if device.type == "cpu" and kernels else None
        self.memory = ErrorMemory(plan, error_decay, device, host, loops)
        # an Apple GPU has no float64
        self._device = torch.device("cpu") if device.type == "mps" else device
        elements = KERNEL_BLOCK if kernels and device.type == "cpu" else get_block_elements(device)
        self._blocks = [compute_blocks(plan, group, elements) for group in plan.groups]
        largest = 0 if kernels else max(elements, *(group.area for group in plan.groups))
        self._gathered = torch.empty(largest, dtype=torch.float32, device=device)
        # One extra place collects the padding entries of the sets.
        self._sums = torch.empty(largest + 1, dtype=torch.float64, device=self._device)

    @torch.no_grad()
    def compress(
        self, deltas: Mapping[str, torch.Tensor], decided: Sequence[SentResult], in_flight: bool, height: int
    ) -> bytes:
        """Add what the inner steps of a round moved, and make a payload of the largest of each chunk.

        `deltas` are start minus end, float32, and finite (`find_infinite`); `decided` and `in_flight` are as in
        `Momentum.settle`. A delta that is missing or of a wrong shape changes nothing.
        """
        strips = view_all_strips(self._plan, {name: delta.contiguous() for name, delta in deltas.items()})
        self.memory.settle(decided, height, in_flight=in_flight)
        made = [self._compress_group(place, strips) for place in range(len(self._plan.groups))]
        self.memory.record_sent(height, [(sent.indices, sent.values) for sent in made])
        return encode_payload(self._plan, made)

    def _compress_group(self, place: int, strips: Sequence[torch.Tensor]) -> Sent:
        group, device = self._plan.groups[place], self.memory.coefficients[place].device
        made = Sent(*self.memory.lend(place), torch.empty(group.chunks, dtype=torch.int8, device=device))
        for block in self._blocks[place]:
            if self._kernels is None:
                self._compress_block(place, block, strips, made)
                continue
            for tile in block.tiles:
                rows, delta = tile.get_rows(block), strips[tile.tensor]
                chosen = Sent(*(part[rows].to(delta.device) for part in made))
                with self.memory.change(place, rows) as memory:
                    self._kernels.compress(memory, delta, tile, self.memory.decay, group.scaled_bits, chosen)
                _keep(made, rows, chosen)
        return made

    def _compress_block(self, place: int, block: Block, strips: Sequence[torch.Tensor], made: Sent) -> None:
        group = self._plan.groups[place]
        gathered = self._gathered[: block.chunks * group.area].view(block.chunks, *group.edges)
        for delta, part in iterate_chunks(block, strips, gathered):
            part.copy_(delta)
        indices, values = select(self.memory.decay_block(place, block.rows, gathered), group.k)
        indices = indices.cpu()
        sets = ChunkSets(indices.numpy(), *quantize(values.cpu().numpy(), group.scaled_bits))
        _keep(made, block.rows, (indices, *map(torch.from_numpy, (get_values(sets), sets.exponents))))

    @torch.no_grad()
    def measure(self, deltas: Mapping[str, torch.Tensor]) -> dict[str, Sums]:
        """What the last `compress` of these deltas sends of each tensor."""
        return measure_update(self._plan, self._blocks, deltas, self.memory, lambda values: values)

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
        # A step of -0 would change a weight of -0 that nobody sent.
        moves = sums[:count].mul_(rate).add_(0.0).to(torch.float32).view(block.chunks, *group.edges)
        for weight, move in iterate_chunks(block, self._strips, moves):
            weight.sub_(move.to(weight.device))


def _keep(made: Sent, rows: slice, chosen: Sequence[torch.Tensor]) -> None:
    for part, one in zip(made, chosen, strict=True):
        part[rows].copy_(one)


def compute_rate(outer_rate: float, steps: Sequence[int]) -> float:
    """What a sum in units of 2^-32 is multiplied by, as float64: the rate is the float32 on record."""
    return float(np.float32(outer_rate)) / sum(steps) * 2.0**-UNIT_BITS


def compute_units(sets: ChunkSets, rows: slice, steps: int) -> NDArray[np.float64]:
    """The weighted values of some chunks in units of 2^-32, [chunks, k]: integers below 2^45."""
    assert sets.exponents is not None, "a payload of local steps has exponents"
    exponents = sets.exponents[rows, None].astype(np.int32) + UNIT_BITS
    return np.ldexp(sets.values[rows].astype(np.float64) * steps, exponents)
