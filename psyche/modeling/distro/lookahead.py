"""The look-ahead point: an estimate of the weights after the results in flight are applied.

With overlap, a round trains on weights that lack the updates of the last two rounds. Moving them by
-lr * sign(inverse of the momentum) for the forward and backward pass compensates for most of that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from psyche.core.encoding.plan import TransformPlan
from psyche.modeling.distro.blocks import compute_blocks, get_block_elements, iterate_chunks
from psyche.modeling.distro.transform import invert


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
