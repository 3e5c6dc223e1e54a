"""The roots of a trainer's own momentum before and after its last result, and the opening of chunks of both (V5)."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from psyche.core.encoding.plan import TransformPlan
from psyche.core.state.state import ZERO32
from psyche.errors import TrainerError
from psyche.modeling.verification.openings import MomentumTree, draw_chunks
from psyche.wire.trainer import OpenRequest, Work


def view_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; of one that is on the CPU without a copy."""
    return tensor.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8).data


class MomentumLog:
    """Follows the momentum from result to result; `coefficients` are those that the optimizer changes in place.

    The momentum after a result is what they hold until the next one. A copy in host memory has that before it.
    """

    def __init__(self, plan: TransformPlan, coefficients: Sequence[Tensor], *, is_fresh: bool) -> None:
        self._plan, self._live = plan, coefficients
        self._kept = [torch.empty(one.shape, dtype=one.dtype) for one in coefficients]
        self._after = None if is_fresh else self._make_tree()  # of a momentum that nothing trained it is none
        self._before: MomentumTree | None = None
        self._height = -1  # of the last result

    def _make_tree(self) -> MomentumTree:
        return MomentumTree(self._plan, [view_bytes(one) for one in self._live])

    def describe(self, table: bytes) -> Work:
        """The last result's table with the roots before and after it; zero where there was no momentum yet."""
        before, after = (tree.root if tree is not None else ZERO32 for tree in (self._before, self._after))
        return Work(table=table, momentum_before=before, momentum_after=after)

    def begin(self) -> None:
        """Before a result: keep what it changes."""
        for kept, live in zip(self._kept, self._live, strict=True):
            kept.copy_(live.detach())
        self._before, self._height = self._after, -1

    def end(self, height: int) -> None:
        """After the result of round `height`."""
        self._after, self._height = self._make_tree(), height

    def open(self, request: OpenRequest) -> bytes:
        """The opening of the last result.

        Raises:
            TrainerError: that is of another round, whose momentum is gone.
        """
        if request.height != self._height:
            raise TrainerError(f"open: the momentum of round {request.height} is no longer here")
        places = draw_chunks(self._plan, request.seed, request.opened_chunks)
        pairs = ((self._before, self._kept), (self._after, self._live))
        return b"".join(
            tree.open(places, [view_bytes(one) for one in groups]) for tree, groups in pairs if tree is not None
        )
