"""A model divided among the ranks of a group: tensor parallelism by transformers, data parallelism by FSDP2.

FSDP2 cuts each tensor where the chunks of the transform plan allow it, so that each rank can compress its own.
"""

import copy
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final, cast

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from psyche.core.encoding.plan import compute_run_plan
from psyche.core.state.state import Optimizer
from psyche.errors import TrainerError
from psyche.modeling.distro.layout import Held, find_cut, get_edges
from psyche.modeling.model import enable_checkpointing, get_parameters, get_shapes
from psyche.modeling.trainer.ranks.group import Group

HEADS: Final = ("num_attention_heads", "num_key_value_heads")


def check_tensor_parallelism(model: Any, ranks: int) -> None:
    """Refuse a model that transformers cannot divide so, before any rank has anything of it."""
    if ranks == 1:
        return
    way_out = "use --data-parallelism instead"
    if not hasattr(model, "maybe_distribute_model"):
        raise TrainerError(f"--tensor-parallelism: transformers {version('transformers')} is too old; {way_out}")
    if not getattr(model, "tp_plan", None):
        raise TrainerError(f"--tensor-parallelism: transformers has no plan for {type(model).__name__}; {way_out}")
    for key in HEADS:
        heads = getattr(model.config, key, None) or ranks
        if heads % ranks:
            raise TrainerError(
                f"--tensor-parallelism {ranks}: does not divide the model's {key}, {heads}; take a divisor of it, or "
                f"{way_out}"
            )


def build_sharded(kind: type[Any], config: Any, optimizer: Optimizer, checkpointing: bool, group: Group) -> nn.Module:
    """This rank's shard of a model, with any values."""
    with no_init_weights():  # no page of the whole model's memory is touched
        model = kind(copy.deepcopy(config))
    model.tie_weights()
    edges = {
        tensor.name: get_edges(tensor)
        for tensor in compute_run_plan(get_shapes(get_parameters(model)), optimizer).tensors
    }
    if checkpointing:
        enable_checkpointing(model)
    if group.tensor > 1:
        _apply_tensor_parallelism(model, group)
    if group.data > 1:
        _apply_data_parallelism(model, group, edges)
    return nn.Module.to(model, group.device)


def _apply_tensor_parallelism(model: Any, group: Group) -> None:
    from transformers.distributed.configuration_utils import DistributedConfig
    from transformers.distributed.utils import TransformersDeviceMesh

    config = DistributedConfig(tp_size=group.tensor, fsdp_size=1)
    type(model).maybe_distribute_model(model, config, TransformersDeviceMesh(group.mesh, group.mesh))
    model.tie_weights()  # what was tied has got parameters of its own


def _apply_data_parallelism(model: nn.Module, group: Group, edges: dict[str, tuple[int, ...]]) -> None:
    known = {parameter: edges[name] for name, parameter in get_parameters(model).items()}

    def place(parameter: nn.Parameter) -> Shard | None:
        axis = find_cut(get_local(parameter).shape, known[parameter], group.data)
        return None if axis is None else Shard(axis)

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, model):
        fully_shard(module, mesh=group.mesh["fsdp"], shard_placement_fn=place)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # gradients add up to the batch's mean; gloo has sums only
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor, without a copy."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def get_held(tensor: torch.Tensor) -> Held:
    """The indices of each dimension that this rank has, found by dividing the numbers of that dimension alike."""
    return tuple(_divide(tensor, axis, n) for axis, n in enumerate(tensor.shape))


def _divide(tensor: torch.Tensor, axis: int, size: int) -> np.ndarray:
    numbers = torch.arange(size)
    if not isinstance(tensor, DTensor):
        return numbers.numpy()
    placements: list[Any] = []
    for placement in cast("tuple[Any, ...]", tensor.placements):
        factor = {"split_factor": placement.split_factor} if hasattr(placement, "split_factor") else {}
        is_here = getattr(placement, "dim", None) == axis
        placements.append(type(placement)(0, **factor) if is_here else Replicate())
    return distribute_tensor(numbers, tensor.device_mesh, placements, src_data_rank=None).to_local().cpu().numpy()


def get_index(held: Sequence[np.ndarray]) -> tuple[slice, ...] | tuple[np.ndarray, ...]:
    """An index that picks these indices of each dimension; slices where they are neighbours, which are views."""
    if all(len(indices) == 0 or indices[-1] - indices[0] + 1 == len(indices) for indices in held):
        return tuple(slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0) for indices in held)
    return np.ix_(*held)
