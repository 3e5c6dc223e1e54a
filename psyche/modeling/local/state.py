"""A member's inner state as it stands in a resume snapshot: in chunks of the plan, as the error memory does."""

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from psyche.core.encoding.plan import PlanGroup, TransformPlan
from psyche.errors import TrainerError
from psyche.modeling.distro.blocks import CPU_BLOCK, compute_blocks, iterate_chunks, view_all_strips
from psyche.modeling.distro.momentum import name_group

COUNTS: Final = "inner.counts"


def gather_chunks(plan: TransformPlan, kind: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a plan as float32 [chunks, area] on the CPU, by the name of each group."""
    found = {_name(kind, group): torch.empty((group.chunks, group.area)) for group in plan.groups}
    for tensor, chunks in _pair(plan, kind, tensors, found):
        chunks.copy_(tensor)
    return found


@torch.no_grad()
def scatter_chunks(
    plan: TransformPlan, kind: str, state: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put what `gather_chunks` returned into tensors of the plan."""
    for group in plan.groups:
        found = state.get(_name(kind, group))
        if found is None or found.shape != (group.chunks, group.area) or found.dtype != torch.float32:
            text = "is missing" if found is None else f"is {found.dtype} {tuple(found.shape)}"
            raise TrainerError(
                f"momentum snapshot: {_name(kind, group)} {text}; was the model or its settings changed?"
            )
    for tensor, chunks in _pair(plan, kind, tensors, state):
        tensor.copy_(chunks)


def _name(kind: str, group: PlanGroup) -> str:
    return f"inner.{kind}.{name_group(group)}"


def _pair(
    plan: TransformPlan, kind: str, tensors: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    strips = view_all_strips(plan, tensors)
    for group in plan.groups:
        rows = state[_name(kind, group)].view(group.chunks, *group.edges)
        for block in compute_blocks(plan, group, CPU_BLOCK):
            yield from iterate_chunks(block, strips, rows[block.rows])
