"""The mapping from the chunks of a group to the tensors, in blocks small enough for the cache.

A tensor is viewed as strips, [strips, h, columns, w]; a strip is one row of chunks. A block combines chunks of one
shape from all tensors, in plan order, so that one batched operation handles chunks of many tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from psyche.core.encoding.plan import PlanGroup, PlanTensor, TransformPlan
from psyche.errors import TrainerError

CPU_BLOCK: Final = 1 << 18  # elements; one float64 buffer of these is 2 MiB
KERNEL_BLOCK: Final = 1 << 21  # of compiled loops, whose numbers are in the cache chunk by chunk; sets take 3 MiB
CUDA_BLOCK: Final = 1 << 22  # large enough that the cost of kernel launches is negligible


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of chunks of one tensor, `strips` x `columns`; it starts at chunk `at` of its block."""

    tensor: int  # index into the plan's tensors
    strips: slice
    columns: slice
    at: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.strips.stop - self.strips.start, self.columns.stop - self.columns.start

    @property
    def chunks(self) -> int:
        strips, columns = self.shape
        return strips * columns

    def get_rows(self, block: "Block") -> slice:
        """The numbers of its chunks in the group of its block."""
        return slice(block.start + self.at, block.start + self.at + self.chunks)


@dataclass(frozen=True, slots=True)
class Block:
    """A run of chunks of a group, starting with chunk `start`, and the tiles that they come from."""

    start: int
    tiles: tuple[Tile, ...]

    @property
    def chunks(self) -> int:
        return sum(tile.chunks for tile in self.tiles)

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.chunks)


def get_block_elements(device: torch.device) -> int:
    """The most elements of a block (unless a single chunk has more)."""
    return CPU_BLOCK if device.type == "cpu" else CUDA_BLOCK


def _get_strips(tensor: PlanTensor) -> tuple[int, int]:
    """The number of strips and of chunks per strip; chunks of height 1 are contiguous and form one strip."""
    batch, rows, columns = tensor.grid
    return (1, tensor.chunks) if tensor.edges[0] == 1 else (batch * rows, columns)


def _cut(strips: int, columns: int, capacity: int) -> Iterator[tuple[slice, slice]]:
    """Cut into rectangles of at most `capacity` chunks: whole strips, or parts of a strip if it is larger."""
    tall, wide = max(1, capacity // columns), min(columns, capacity)
    for strip in range(0, strips, tall):
        for column in range(0, columns, wide):
            yield slice(strip, min(strip + tall, strips)), slice(column, min(column + wide, columns))


def compute_blocks(plan: TransformPlan, group: PlanGroup, elements: int) -> list[Block]:
    """Cut a group into blocks of at most `elements` coefficients, at least one chunk each."""
    capacity = max(1, elements // group.area)
    blocks: list[Block] = []
    tiles: list[Tile] = []
    start = used = 0
    for place in group.tensors:
        for strips, columns in _cut(*_get_strips(plan.tensors[place]), capacity):
            tile = Tile(place, strips, columns, used)
            if used + tile.chunks > capacity:
                blocks.append(Block(start, tuple(tiles)))
                start, used, tiles = start + used, 0, []
                tile = replace(tile, at=0)
            tiles.append(tile)
            used += tile.chunks
    return [*blocks, Block(start, tuple(tiles))]


def view_strips(tensor: torch.Tensor, entry: PlanTensor) -> torch.Tensor:
    """A contiguous tensor as [strips, h, columns, w], without a copy."""
    strips, columns = _get_strips(entry)
    return tensor.view(strips, entry.edges[0], columns, entry.edges[1])


def view_all_strips(plan: TransformPlan, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """All tensors of a plan as strips, in the plan's order."""
    strips: list[torch.Tensor] = []
    for entry in plan.tensors:
        tensor = tensors.get(entry.name)
        if tensor is None or tuple(tensor.shape) != entry.dims:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}"
            raise TrainerError(f"tensor {entry.name!r} {found}, the plan says {entry.dims}")
        if not tensor.is_contiguous():
            raise TrainerError(f"tensor {entry.name!r} must be contiguous")
        strips.append(view_strips(tensor.detach(), entry))
    return strips


def iterate_chunks(
    block: Block, strips: Sequence[torch.Tensor], chunks: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of views, equal in shape: a rectangle of a tensor, and the same chunks in `chunks` [chunks, h, w]."""
    for tile in block.tiles:
        part = chunks[tile.at : tile.at + tile.chunks].unflatten(0, tile.shape)
        yield strips[tile.tensor][tile.strips, :, tile.columns], part.permute(0, 2, 1, 3)
