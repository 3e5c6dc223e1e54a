"""DisTrO for one trainer: compress gradients into a payload, apply decided payloads.

With overlap, a round trains on weights that lack the updates of the last two rounds. The look-ahead point estimates
them: weights moved by -lr * sign(inverse of the momentum) for the forward and backward pass compensate for most of it.
Or they are moved as the own last payload alone would move them, which everybody can compute, to the bit (V4).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.device import allocate
from psyche.modeling.distro.apply import Applier, decay_weights
from psyche.modeling.distro.blocks import Block, iterate_chunks, view_all_strips
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.modeling.distro.momentum import Chosen, Momentum
from psyche.modeling.distro.statistics import Sums, measure_update
from psyche.modeling.distro.transform import invert, pack, select, transform
from psyche.wire.trainer import SentResult


@torch.no_grad()
def _copy(source: Sequence[torch.Tensor], target: Sequence[torch.Tensor]) -> None:
    for old, new in zip(source, target, strict=True):
        new.copy_(old)


class Distro:
    """The optimizer of one trainer over one set of fp32 master weights, `parameters` by name.

    They must be exactly the plan's tensors, float32, contiguous and on one device; they are changed in place and must
    keep their storage. `decay` is the momentum's per trained round, 0 <= decay < 1. Momentum and copies are on `host`,
    if one is given.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        plan: TransformPlan,
        decay: float,
        host: torch.device | None = None,
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise TrainerError(f"compression_decay: {decay} is not at least 0 and below 1")
        _check_parameters(parameters, plan)
        self._plan = plan
        self._strips = view_all_strips(plan, parameters)
        self._copies: list[torch.Tensor] = []  # of the weights: 4 bytes per parameter, allocated at the first use
        device = self._strips[0].device
        self._host = host
        self._applier = Applier(plan, self._strips)
        self.momentum = Momentum(plan, decay, device, host, self._applier.kernels)
        largest = self._applier.largest
        self._gathered, self._scratch = (torch.empty(largest, dtype=torch.float32, device=device) for _ in range(2))

    @torch.no_grad()
    def compress(
        self,
        gradients: Mapping[str, torch.Tensor],
        lr: float,
        decided: Sequence[SentResult],
        in_flight: bool,
        height: int,
    ) -> bytes:
        """Update the momentum with one round's gradients and select the coefficients to send; return the payload.

        It takes out or gives back the values of earlier results (`decided` since the last call; with `in_flight`, of
        the undecided one too), decays the momentum, adds lr times the transformed gradient, and packs the k largest
        coefficients of every chunk. `gradients` are float32, averaged over the batch, finite and clipped; if one is
        missing or has a wrong shape, nothing is changed.
        """
        strips = view_all_strips(self._plan, {name: gradient.contiguous() for name, gradient in gradients.items()})
        self.momentum.settle(decided, height, in_flight=in_flight)
        chosen = [self._compress_group(place, strips, lr) for place in range(len(self._plan.groups))]
        self.momentum.record_sent(height, chosen)
        return pack(self._plan, chosen)

    @torch.no_grad()
    def measure(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, Sums]:
        """What the last `compress` of these gradients does to each tensor."""
        return measure_update(self._plan, self._applier.blocks, gradients, self.momentum, invert)

    @torch.no_grad()
    def transform(self, gradients: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The transformed gradients as `compress` takes them up, but for lr: float32 [chunks, area] of each group."""
        strips = view_all_strips(self._plan, {name: gradient.contiguous() for name, gradient in gradients.items()})
        found: list[torch.Tensor] = []
        for group, blocks in zip(self._plan.groups, self._applier.blocks, strict=True):
            chunks = torch.empty((group.chunks, *group.edges), device=strips[0].device)
            for block in blocks:
                for gradient, part in iterate_chunks(block, strips, chunks[block.rows]):
                    part.copy_(gradient)
            found.append(transform(chunks).view(group.chunks, group.area))
        return found

    def apply(self, payloads: Sequence[bytes], lr: float, weight_decay: float) -> None:
        """Apply decided payloads, in ascending batch start: weight decay first, then the signs of the averaged votes.

        Weight decay is applied even if there are no payloads. `lr` is that of the round that applies (S1). In 1-bit
        mode the result is exact: equal payloads and masters give equal bytes on every machine. If a payload breaks the
        format, nothing is changed.
        """
        self.apply_sets([decode_payload(self._plan, payload) for payload in payloads], lr, weight_decay)

    def apply_sets(self, decoded: Sequence[Sequence[ChunkSets]], lr: float, weight_decay: float) -> None:
        """Apply payloads that are decoded already, each as one `ChunkSets` for each group of the plan."""
        decay_weights(self._strips, lr, weight_decay)
        self._applier.apply(decoded, lr)

    def get_state(self) -> dict[str, torch.Tensor]:
        return self.momentum.get_state()

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.momentum.load_state(state)

    @contextmanager
    def lookahead(self, lr: float, own: Sequence[ChunkSets] | None = None) -> Iterator[None]:
        """Move the weights to the look-ahead point inside the context; `lr` is that of the previous round.

        That is along the momentum, or where the payload `own` alone would lead. Afterwards, after an error or a
        cancellation too, they are what they were, bit for bit. Undoing the step by addition would not be exact: it
        changes 2 to 3 % of the weights in their last bits. So a copy is kept. Calls must not be nested.
        """
        if not self._copies:
            self._copies = [allocate(weight.shape, weight.device, self._host) for weight in self._strips]
        _copy(self._strips, self._copies)
        try:
            if own is None:
                self._step_ahead(lr)
            else:
                self._applier.apply([own], lr)
            yield
        finally:
            _copy(self._copies, self._strips)

    @torch.no_grad()
    def _step_ahead(self, lr: float) -> None:
        for place, (group, blocks) in enumerate(zip(self._plan.groups, self._applier.blocks, strict=True)):
            for block in blocks:
                if (kernels := self._applier.find_kernels(group)) is not None:
                    for tile in block.tiles:
                        momentum = self.momentum.read(place, tile.get_rows(block))
                        kernels.look_ahead(self._strips[tile.tensor], tile, momentum, lr)
                    continue
                momentum = self.momentum.read(place, block.rows)
                steps = invert(momentum.view(block.chunks, *group.edges)).sign_().mul_(lr)
                for weight, step in iterate_chunks(block, self._strips, steps):
                    weight.sub_(step)

    def _compress_group(self, place: int, strips: Sequence[torch.Tensor], lr: float) -> Chosen:
        group = self._plan.groups[place]
        if (kernels := self._applier.find_kernels(group)) is not None:
            return self._compress_fast(place, strips, lr, kernels)
        parts = [self._compress_block(place, block, strips, lr) for block in self._applier.blocks[place]]
        indices, values = zip(*parts, strict=True)
        assert sum(part.shape[0] for part in indices) == group.chunks, "blocks cover their group"
        return torch.cat(indices), torch.cat(values)

    def _compress_block(self, place: int, block: Block, strips: Sequence[torch.Tensor], lr: float) -> Chosen:
        group = self._plan.groups[place]
        shape = (block.chunks, *group.edges)
        count = block.chunks * group.area
        gathered, scratch = self._gathered[:count].view(shape), self._scratch[:count].view(shape)
        for gradient, part in iterate_chunks(block, strips, gathered):
            torch.mul(gradient, lr, out=part)
        transformed = transform(gathered, gathered, scratch) if group.edges[0] > 1 else transform(gathered, scratch)
        coefficients = self.momentum.decay_block(place, block.rows, transformed)
        return select(coefficients, group.k)

    def _compress_fast(self, place: int, strips: Sequence[torch.Tensor], lr: float, kernels: Any) -> Chosen:
        indices, values = self.momentum.lend(place)
        for block in self._applier.blocks[place]:
            for tile in block.tiles:
                rows = tile.get_rows(block)
                with self.momentum.change(place, rows) as memory:
                    chosen = indices[rows], values[rows]
                    kernels.compress(strips[tile.tensor], tile, lr, memory, self.momentum.decay, chosen)
        return indices, values


def _check_parameters(parameters: Mapping[str, torch.Tensor], plan: TransformPlan) -> None:
    names = [tensor.name for tensor in plan.tensors]
    if sorted(parameters) != names:
        odd = sorted(set(parameters) ^ set(names))[:3]
        raise TrainerError(f"parameters and transform plan differ in names, such as {odd}")
    devices = {parameter.device for parameter in parameters.values()}
    types = {parameter.dtype for parameter in parameters.values()}
    if len(devices) != 1 or types != {torch.float32}:
        raise TrainerError(f"masters must be float32 on one device, got {types} on {devices}")
