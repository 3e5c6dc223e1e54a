"""DisTrO for one trainer: compress gradients into a payload, apply decided payloads.

With overlap, a round trains on weights that lack the updates of the last two rounds. The look-ahead point estimates
them: weights moved by -lr * sign(inverse of the momentum) for the forward and backward pass compensate for most of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.distro.apply import Applier, decay_weights
from psyche.modeling.distro.blocks import Block, compute_blocks, get_block_elements, iterate_chunks, view_all_strips
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.momentum import Chosen, Momentum
from psyche.modeling.distro.transform import invert, pack, select, transform
from psyche.wire.trainer import SentResult


class Lookahead:
    """Moves weights to the look-ahead point and restores them bit for bit.

    Undoing the step by addition would not be exact: it changes 2 to 3 % of the weights in their last bits. So a copy of
    the weights is kept (4 bytes per parameter), allocated at the first use.
    """

    def __init__(self, plan: TransformPlan, strips: Sequence[torch.Tensor]) -> None:
        self._plan = plan
        self._strips = strips
        self._copies: list[torch.Tensor] = []
        elements = get_block_elements(strips[0].device)
        self._blocks = [compute_blocks(plan, group, elements) for group in plan.groups]

    @contextmanager
    def move(self, momentum: Sequence[torch.Tensor], lr: float) -> Iterator[None]:
        """Move the weights by -lr * sign(inverse of `momentum`) inside the context, and restore them afterwards.

        They are restored after an error or a cancellation too. `momentum` is float32 [chunks, area] per group. Calls
        must not be nested.
        """
        if not self._copies:
            self._copies = [torch.empty_like(weight) for weight in self._strips]
        _copy(self._strips, self._copies)
        try:
            self._step(momentum, lr)
            yield
        finally:
            _copy(self._copies, self._strips)

    @torch.no_grad()
    def _step(self, momentum: Sequence[torch.Tensor], lr: float) -> None:
        for place, group in enumerate(self._plan.groups):
            for block in self._blocks[place]:
                shape = (block.chunks, *group.edges)
                steps = invert(momentum[place][block.rows].view(shape)).sign_().mul_(lr)
                for weight, step in iterate_chunks(block, self._strips, steps):
                    weight.sub_(step)


@torch.no_grad()
def _copy(source: Sequence[torch.Tensor], target: Sequence[torch.Tensor]) -> None:
    for old, new in zip(source, target, strict=True):
        new.copy_(old)


class Distro:
    """The optimizer of one trainer over one set of fp32 master weights, `parameters` by name.

    They must be exactly the plan's tensors, float32, contiguous and on one device; they are changed in place and must
    keep their storage. `decay` is the momentum's per trained round, 0 <= decay < 1.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        plan: TransformPlan,
        decay: float,
        topk: int,
        one_bit: bool,
    ) -> None:
        _check_parameters(parameters, plan)
        if (topk, one_bit) != (plan.k, plan.one_bit):
            raise TrainerError(f"top-k {topk} and 1-bit {one_bit}: the plan says {plan.k} and {plan.one_bit}")
        self._plan = plan
        self._strips = view_all_strips(plan, parameters)
        device = self._strips[0].device
        elements = get_block_elements(device)
        self._blocks = [compute_blocks(plan, group, elements) for group in plan.groups]
        largest = max(elements, *(group.area for group in plan.groups))
        self._gathered, self._scratch = (torch.empty(largest, dtype=torch.float32, device=device) for _ in range(2))
        self._momentum = Momentum(plan, decay, device)
        self._applier = Applier(plan, self._strips)
        self._lookahead = Lookahead(plan, self._strips)

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
        self._momentum.settle(decided, height, in_flight=in_flight)
        chosen = [self._compress_group(place, strips, lr) for place in range(len(self._plan.groups))]
        self._momentum.record_sent(height, chosen)
        return pack(self._plan, chosen)

    def apply(self, payloads: Sequence[bytes], lr: float, weight_decay: float) -> None:
        """Apply decided payloads, in ascending batch start: weight decay first, then the signs of the averaged votes.

        Weight decay is applied even if there are no payloads. `lr` is that of the round that applies (S1). In 1-bit
        mode the result is exact: equal payloads and masters give equal bytes on every machine. If a payload breaks the
        format, nothing is changed.
        """
        decoded = [decode_payload(self._plan, payload) for payload in payloads]
        decay_weights(self._strips, lr, weight_decay)
        self._applier.apply(decoded, lr)

    def lookahead(self, lr: float) -> AbstractContextManager[None]:
        """`lr` is the learning rate of the previous round."""
        return self._lookahead.move(self._momentum.coefficients, lr)

    def momentum_state(self) -> dict[str, torch.Tensor]:
        """The momentum and the sent, undecided values as tensors by name, for a snapshot; they are not copies."""
        return self._momentum.get_state()

    def load_momentum_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the momentum from a snapshot, bit for bit."""
        self._momentum.load_state(state)

    def _compress_group(self, place: int, strips: Sequence[torch.Tensor], lr: float) -> Chosen:
        group = self._plan.groups[place]
        parts = [self._compress_block(place, block, strips, lr) for block in self._blocks[place]]
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
        coefficients = self._momentum.decay_block(place, block.rows, transformed)
        return select(coefficients, group.k)


def _check_parameters(parameters: Mapping[str, torch.Tensor], plan: TransformPlan) -> None:
    names = [tensor.name for tensor in plan.tensors]
    if sorted(parameters) != names:
        odd = sorted(set(parameters) ^ set(names))[:3]
        raise TrainerError(f"parameters and transform plan differ in names, such as {odd}")
    devices = {parameter.device for parameter in parameters.values()}
    types = {parameter.dtype for parameter in parameters.values()}
    if len(devices) != 1 or types != {torch.float32}:
        raise TrainerError(f"masters must be float32 on one device, got {types} on {devices}")
