"""What the DisTrO tests share: vectors, small models, chunks of a tensor."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from psyche.core.encoding.plan import PlanGroup, TransformPlan, compute_plan
from psyche.modeling.distro.blocks import compute_blocks, iterate_chunks, view_all_strips
from psyche.modeling.distro.codec import ChunkSets
from psyche.modeling.distro.optimizer import Distro

torch.set_num_threads(1)  # threads cost more than they bring at these sizes

VECTORS = Path(__file__).parents[2] / "vectors"
SHAPES = {"a": (48, 32), "b": (20,), "c": (3, 7, 16), "d": (16, 37), "e": (13, 64), "f": ()}


def load_vectors(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(VECTORS / f"{name}.safetensors", "pt") as file:
        settings = {key: _parse(value) for key, value in (file.metadata() or {}).items()}
        return {key: file.get_tensor(key) for key in file.keys()}, settings  # noqa: SIM118


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def make_plan(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES, chunk: int = 16, k: int = 8, one_bit: bool = True,
    scaled_bits: int = 0,
) -> TransformPlan:  # fmt: skip
    return compute_plan(dict(shapes), chunk, k, one_bit=one_bit and not scaled_bits, scaled_bits=scaled_bits)


def make_tensors(plan: TransformPlan, seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {t.name: torch.randn(t.dims, generator=generator) * scale for t in plan.tensors}


def make_distro(plan: TransformPlan, seed: int = 0, decay: float = 0.9) -> tuple[Distro, dict[str, torch.Tensor]]:
    weights = make_tensors(plan, seed, 0.02)
    return Distro(weights, plan, decay), weights


def cut_chunks(plan: TransformPlan, tensors: Mapping[str, torch.Tensor], group: PlanGroup) -> torch.Tensor:
    strips = view_all_strips(plan, tensors)
    chunks = torch.empty((group.chunks, *group.edges), dtype=strips[0].dtype)
    for block in compute_blocks(plan, group, 7 * group.area):
        for rectangle, part in iterate_chunks(block, strips, chunks[block.rows]):
            part.copy_(rectangle)
    return chunks


def join_chunks(plan: TransformPlan, groups: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors = {t.name: torch.full(t.dims, float("nan"), dtype=groups[0].dtype) for t in plan.tensors}
    strips = view_all_strips(plan, tensors)
    for group, chunks in zip(plan.groups, groups, strict=True):
        for block in compute_blocks(plan, group, 7 * group.area):
            for rectangle, part in iterate_chunks(block, strips, chunks[block.rows]):
                rectangle.copy_(part)
    return tensors


def make_sets(plan: TransformPlan, seed: int, *, full: bool = False) -> list[ChunkSets]:
    """Random sets of a plan, of random sizes unless `full`."""
    generator = np.random.default_rng(seed)
    made = []
    for group in plan.groups:
        shape = (group.chunks, group.k)
        order = np.argsort(generator.random((group.chunks, group.area)), axis=1)[:, : group.k].astype(np.int32)
        sizes = np.full(group.chunks, group.k) if full else generator.integers(0, group.k + 1, group.chunks)
        indices = np.sort(np.where(np.arange(group.k) < sizes[:, None], order, group.area), axis=1).astype(np.int32)
        signs = np.where(generator.random(shape) < 0.5, -1, 1) * (indices < group.area)
        magnitudes = generator.random(shape) + 0.5
        values = signs.astype(np.int8) if plan.one_bit else (signs * magnitudes).astype(np.float32)
        if not plan.scaled_bits:
            made.append(ChunkSets(indices, values))
            continue
        levels = generator.choice((1, 3)[: plan.scaled_bits], shape)
        exponents = np.where(indices[:, 0] < group.area, generator.integers(-32, 1, group.chunks), 0)
        made.append(ChunkSets(indices, (signs * levels).astype(np.int8), exponents.astype(np.int8)))
    return made
