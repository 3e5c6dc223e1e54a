"""Models for users: Hugging Face folders with the names that `save_pretrained` gives, written part by part."""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from psyche.durable import describe_write_error, write_file
from psyche.errors import TrainerError
from psyche.modeling.architecture import Blueprint, read_blueprint
from psyche.modeling.checkpoint import map_tensors
from psyche.modeling.model_config import Dims
from psyche.modeling.snapshot import (
    MODEL_NAME,
    read_snapshot_files,
    read_snapshot_info,
    write_folder,
    write_model_files,
)
from psyche.modeling.user_files import CARD_NAME, build_user_files
from psyche.modeling.weight_files import MAX_SHARD_BYTES, write_weights
from psyche.modeling.weights import Tensors
from psyche.wire.trainer import SnapshotReply, SnapshotRequest

# By what users call them: torch's type, and its name in a safetensors file.
EXPORT_DTYPES: Final = {
    "float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16"), "float16": (torch.float16, "F16"),
}  # fmt: skip
_LAYER: Final = re.compile(r"(.*?\.\d+)\.")


class DiskView:
    """A model's tensors by their names in files, some of which are made of several in memory, or the other way round.

    Names, shapes and values follow from what transformers does when it saves; a layer at a time is converted.
    """

    def __init__(self, tensors: Tensors, blueprint: Blueprint) -> None:
        self._tensors = tensors
        self._model = cast("Any", blueprint.model)
        conversions = get_model_conversion_mapping(self._model, add_legacy=False)
        # As `revert_weight_conversion` takes them where nothing was loaded, but looked up once.
        self._model._weight_conversions = [one for one in conversions if not isinstance(one, PrefixChange)]  # noqa: SLF001
        self._has_conversions = bool(self._model._weight_conversions)  # noqa: SLF001
        self._groups: dict[str, list[str]] = {}
        for name in tensors:
            self._groups.setdefault(self._get_group(name), []).append(name)
        self.dims: dict[str, Dims] = {}
        self._group_of: dict[str, str] = {}
        for group, names in self._groups.items():
            meta = {name: torch.empty(tensors[name].shape, device="meta") for name in names}
            for name, one in self._revert(meta).items():
                self.dims[name] = tuple(one.shape)
                self._group_of[name] = group
        self._shown: tuple[str, dict[str, torch.Tensor]] = ("", {})

    def _get_group(self, name: str) -> str:
        layer = _LAYER.match(name) if self._has_conversions else None
        return layer[1] if layer else name

    def _revert(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return revert_weight_conversion(self._model, tensors) if self._has_conversions else tensors

    def get(self, name: str) -> torch.Tensor:
        group = self._group_of[name]
        if self._shown[0] != group:
            self._shown = ("", {})
            self._shown = (group, self._revert({one: self._tensors[one].detach() for one in self._groups[group]}))
        return self._shown[1][name]


def export_model(
    path: Path, tensors: Tensors, model_files: Mapping[str, bytes], dtype: str, card: str,
    blueprint: Blueprint, *, max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:  # fmt: skip
    """Write a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads; replace an old one atomically.

    `tensors` are the fp32 masters and buffers, of which a part at a time is copied and rounded to `dtype`.
    `model_files` (config.json and tokenizer files) are completed for users (`build_user_files`). No file of weights is
    larger than `max_shard_bytes`, unless one tensor is.
    """
    if dtype not in EXPORT_DTYPES:
        raise TrainerError(f"export {path}: dtype {dtype!r}, must be one of {', '.join(EXPORT_DTYPES)}")
    files = build_user_files(model_files, dtype, blueprint.positions, _get_changes(blueprint))
    view = DiskView(tensors, blueprint)
    try:
        with write_folder(path) as folder:
            write_weights(
                folder, view.dims, EXPORT_DTYPES[dtype][1], lambda name: [_get_values(name, view.get(name), dtype)],
                max_shard_bytes=max_shard_bytes,
            )  # fmt: skip
            write_model_files(folder, files)
            write_file(folder / CARD_NAME, card.encode())
    except OSError as error:
        raise TrainerError(f"export {path}: cannot be written: {describe_write_error(error)}") from error


def _get_changes(blueprint: Blueprint) -> dict[str, int]:
    """AR7: the model has been trained on longer sequences than its config.json says."""
    recorded = getattr(blueprint.on_record, "max_position_embeddings", None)
    if blueprint.positions is None or blueprint.positions == recorded:
        return {}
    key = "max_position_embeddings"
    return {blueprint.config.attribute_map.get(key, key): blueprint.positions}


def _get_values(name: str, tensor: torch.Tensor, dtype: str) -> memoryview:
    rounded = tensor.detach().to("cpu", EXPORT_DTYPES[dtype][0]).contiguous().reshape(-1)
    if dtype == "float16" and not bool(rounded.isfinite().all()) and bool(tensor.isfinite().all()):
        raise TrainerError(f"export: float16 cannot hold the values of {name}; export bfloat16 or float32")
    kind = {4: (torch.int32, "<i4"), 2: (torch.int16, "<i2")}[rounded.itemsize]
    array = rounded.view(kind[0]).numpy().astype(kind[1], copy=False)
    return memoryview(array.data).cast("B")


def export_snapshot(request: SnapshotRequest) -> SnapshotReply:
    """Export what a resume snapshot holds, and not the current weights."""
    started, path = time.perf_counter(), Path(request.path)
    info = read_snapshot_info(Path(request.source))
    blueprint = read_blueprint(info.path / MODEL_NAME, request.max_seq_len)
    export_model(path, map_tensors(info), read_snapshot_files(info), request.dtype, request.card, blueprint)
    return describe_folder(path, info.weight_root, started)


def describe_folder(path: Path, root: bytes, started: float) -> SnapshotReply:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return SnapshotReply(path=str(path), size_bytes=size, weight_root=root, seconds=time.perf_counter() - started)
