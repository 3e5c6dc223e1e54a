"""How several ranks divide the chunks of one model: each has a plan of its own, and their payloads add up to one.

A rank holds some indices of every dimension of a tensor. If these are whole chunks, and no other rank has them, the
tensor is cut: each rank transforms, selects and applies its own chunks, by a plan with the local sizes and the global
edges. Any other tensor goes whole to one rank, its owner. So the coefficients of a chunk never depend on the number of
ranks, and only payload bytes and small numbers travel.

NumPy only, like the coding of payloads.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.plan import PlanTensor, TransformPlan
from psyche.modeling.distro.codec import ChunkSets, decode_payload, encode_payload

Held = tuple[NDArray[np.int64], ...]  # the indices of each dimension of a tensor that a rank holds
Places = dict[tuple[int, int], NDArray[np.int64]]  # by chunk edges: the numbers of a rank's chunks in the whole group


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of `plan` among ranks: per rank its plan and the places of its chunks; who has the uncut tensors."""

    plan: TransformPlan
    plans: tuple[TransformPlan, ...]
    places: tuple[Places, ...]
    owners: dict[str, int]

    def take(self, rank: int, sets: Sequence[ChunkSets]) -> list[ChunkSets]:
        """A rank's part of decoded sets, in the order of its own plan's groups."""
        whole = {group.edges: chosen for group, chosen in zip(self.plan.groups, sets, strict=True)}
        return [whole[edges].take(places) for edges, places in sorted(self.places[rank].items())]

    def merge(self, parts: Sequence[bytes]) -> bytes:
        """The payload of the whole model from those of all ranks; the same bytes as one rank would have sent."""
        decoded = [decode_payload(plan, part) for plan, part in zip(self.plans, parts, strict=True)]
        sets: list[ChunkSets] = []
        for group in self.plan.groups:
            pieces = [
                part[sorted(places).index(group.edges)] if group.edges in places else None
                for places, part in zip(self.places, decoded, strict=True)
            ]
            indices = self.join(group.edges, [piece and piece.indices for piece in pieces])
            values = self.join(group.edges, [piece and piece.values for piece in pieces])
            scales = [piece and piece.exponents for piece in pieces]
            sets.append(ChunkSets(indices, values, self.join(group.edges, scales) if group.scaled_bits else None))
        return encode_payload(self.plan, sets)

    def join(self, edges: tuple[int, int], parts: Sequence[Any]) -> NDArray[Any]:
        """Put the rows of all ranks' arrays, one row for each chunk of these edges, to their places in the group."""
        found = [(places[edges], part) for places, part in zip(self.places, parts, strict=True) if part is not None]
        joined = np.empty((sum(map(len, (part for _, part in found))), *found[0][1].shape[1:]), found[0][1].dtype)
        for places, part in found:
            joined[places] = part
        return joined


def get_edges(tensor: PlanTensor) -> tuple[int, ...]:
    """The chunk edge of each dimension; 1 where a dimension only counts matrices."""
    dims = len(tensor.dims)
    return ((1,) * dims + tensor.edges)[-dims:] if dims else ()


def find_cut(dims: Sequence[int], edges: Sequence[int], ranks: int) -> int | None:
    """The first dimension that `ranks` can divide into equal parts of whole chunks; None if there is none."""
    return next((axis for axis, (n, edge) in enumerate(zip(dims, edges, strict=True)) if n % (ranks * edge) == 0), None)


def compute_cut_share(plan: TransformPlan, ranks: int) -> float:
    """The share of a model's parameters in tensors that so many ranks can cut."""
    sizes = [(math.prod(tensor.dims), find_cut(tensor.dims, get_edges(tensor), ranks)) for tensor in plan.tensors]
    return sum(size for size, axis in sizes if axis is not None) / sum(size for size, _ in sizes)


def compute_layout(plan: TransformPlan, held: Sequence[Mapping[str, Held]], uncut: Collection[str] = ()) -> Layout:
    """Divide a plan among ranks that hold these parts of its tensors, by name; of tensors in `uncut` one has all.

    The tensors that are not cut go, the largest first, to the rank that has least of them.
    """
    cut: dict[str, list[tuple[NDArray[np.int64], ...]]] = {}
    for tensor in (one for one in plan.tensors if one.name not in uncut):
        chunks = [_number_chunks(tensor, rank[tensor.name]) for rank in held]
        whole = [numbers for numbers in chunks if numbers is not None]
        if len(whole) == len(held) and sum(math.prod(map(len, n)) for n in whole) == tensor.chunks and tensor.dims:
            cut[tensor.name] = whole
    loads = [0] * len(held)
    owners: dict[str, int] = {}
    for tensor in sorted(plan.tensors, key=lambda one: -math.prod(one.dims)):
        if tensor.name not in cut:
            owners[tensor.name] = loads.index(min(loads))
            loads[owners[tensor.name]] += math.prod(tensor.dims)
    plans = tuple(_make_plan(plan, rank, cut, owners, parts) for rank, parts in enumerate(held))
    return Layout(plan, plans, tuple(_find_places(plan, rank, cut, owners) for rank in range(len(held))), owners)


def _number_chunks(tensor: PlanTensor, held: Held) -> tuple[NDArray[np.int64], ...] | None:
    """The numbers of the chunks along each dimension that `held` indices make up; None if one is not whole."""
    numbers: list[NDArray[np.int64]] = []
    for indices, edge in zip(held, get_edges(tensor), strict=True):
        if len(indices) % edge:
            return None
        rows = indices.reshape(-1, edge)
        if (rows != rows[:, :1] // edge * edge + np.arange(edge)).any():
            return None
        numbers.append(rows[:, 0] // edge)
    return tuple(numbers)


def _make_plan(
    plan: TransformPlan, rank: int, cut: Mapping[str, Any], owners: Mapping[str, int], held: Mapping[str, Held]
) -> TransformPlan:
    tensors = [
        replace(tensor, dims=tuple(map(len, held[tensor.name]))) if tensor.name in cut else tensor
        for tensor in plan.tensors
        if owners.get(tensor.name, rank) == rank
    ]
    return replace(plan, tensors=tuple(tensor for tensor in tensors if math.prod(tensor.dims)))


def _find_places(
    plan: TransformPlan, rank: int, cut: Mapping[str, Sequence[tuple[NDArray[np.int64], ...]]],
    owners: Mapping[str, int],
) -> Places:  # fmt: skip
    found: Places = {}
    for group in plan.groups:
        first = 0
        parts: list[NDArray[np.int64]] = []
        for tensor in (plan.tensors[place] for place in group.tensors):
            grid = [n // edge for n, edge in zip(tensor.dims, get_edges(tensor), strict=True)]
            numbers = first + np.arange(tensor.chunks)
            if tensor.name in cut:
                parts.append(numbers.reshape(grid)[np.ix_(*cut[tensor.name][rank])].reshape(-1))
            elif owners[tensor.name] == rank:
                parts.append(numbers)
            first += tensor.chunks
        if any(map(len, parts)):
            found[group.edges] = np.concatenate(parts)
    return found
