"""Reading and writing resume snapshots: fp32, exact."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers.modeling_utils import PreTrainedModel

from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.durable import describe_write_error, sync_file, write_file
from psyche.errors import TrainerError, UnusableModelError
from psyche.modeling.architecture import Blueprint, build_loaded, read_blueprint
from psyche.modeling.model import fill_tensor
from psyche.modeling.model_check import find_differences
from psyche.modeling.snapshot import (
    CONFIG_NAME,
    MANIFEST_NAME,
    MODEL_NAME,
    MOMENTUM_NAME,
    TENSORS_NAME,
    SnapshotInfo,
    compute_file_blob_id,
    compute_file_hash,
    get_file_entries,
    get_tensor_path,
    read_momentum_fields,
    write_folder,
    write_info,
    write_model_files,
)
from psyche.modeling.weights import Tensors, get_bytes
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, blob_id_of

Progress = Callable[[], None]


def write_snapshot(
    info: SnapshotInfo,
    tensors: Tensors,
    momentum: Mapping[str, torch.Tensor],
    momentum_fields: Mapping[str, Any],
    model_files: Mapping[str, bytes],
    on_progress: Progress,
) -> bytes:
    """Write a resume snapshot atomically at `info.path` and return its weight root (32 bytes).

    `tensors` are all tensors of the manifest (`model.get_tensors`). `entries`, `files` and `weight_root` of `info`
    are ignored and computed here. `on_progress` is called once per tensor.
    """
    try:
        with write_folder(info.path) as folder:
            manifest = encode_manifest(_write_tensors(folder, tensors, on_progress), get_file_entries(model_files))
            write_file(folder / MANIFEST_NAME, manifest)
            save_file({name: one.detach().cpu().contiguous() for name, one in momentum.items()}, folder / MOMENTUM_NAME)
            sync_file(folder / MOMENTUM_NAME)
            write_model_files(folder / MODEL_NAME, model_files)
            about = {**momentum_fields, "blake3": compute_file_hash(folder / MOMENTUM_NAME).hex()}
            root = blake3_hash(manifest)
            write_info(folder, replace(info, weight_root=root), about)
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"snapshot {info.path}: cannot be written: {describe_write_error(error)}") from error
    return root


def _write_tensors(folder: Path, tensors: Tensors, on_progress: Progress) -> list[TensorEntry]:
    (folder / TENSORS_NAME).mkdir()
    entries: list[TensorEntry] = []
    for index, (name, tensor) in enumerate(tensors.items()):
        data = get_bytes(tensor)
        write_file(get_tensor_path(folder, index), data)
        entries.append(TensorEntry(name, tuple(tensor.shape), blob_id_of(data)))
        on_progress()
    return entries


def load_snapshot(info: SnapshotInfo, on_progress: Progress, blueprint: Blueprint | None = None) -> PreTrainedModel:
    """Build the snapshot's model on the CPU with exactly its weights; every tensor is checked against the manifest."""
    config = info.path / MODEL_NAME / CONFIG_NAME
    blueprint = blueprint or read_blueprint(config)
    found = {entry.name: tuple(entry.dims) for entry in info.entries}
    if wrong := find_differences(str(info.path / MODEL_NAME), found, blueprint.tensors, config):
        raise UnusableModelError(f"snapshot {info.path}: {wrong}")
    tensors: dict[str, torch.Tensor] = {}
    for blob in info.blobs[: len(info.entries)]:
        if compute_file_blob_id(blob.path) != (blob.size_bytes, blob.blob_id):
            raise TrainerError(f"snapshot {info.path}: the bytes of {blob.name} are damaged; use another snapshot")
        with blob.path.open("rb") as file:
            tensors[blob.name] = fill_tensor(found[blob.name], iter(lambda: file.read(BLOB_CHUNK_BYTES), b""))
        on_progress()
    return build_loaded(blueprint, tensors, str(info.path))


def map_tensors(info: SnapshotInfo) -> dict[str, torch.Tensor]:
    """A snapshot's tensors as they lie on the disk, which reads what is used of them; nobody may change them."""
    return {
        blob.name: torch.from_numpy(np.memmap(blob.path, "<f4", "c", shape=tuple(entry.dims)))
        for blob, entry in zip(info.blobs, info.entries, strict=False)
    }


def load_momentum(info: SnapshotInfo) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Load the momentum of a snapshot, as tensors by name, and its description in snapshot.json."""
    fields = read_momentum_fields(info)
    try:
        return load_file(info.path / MOMENTUM_NAME), fields
    except (OSError, SafetensorError) as error:
        raise TrainerError(f"snapshot {info.path}: {MOMENTUM_NAME} cannot be read: {error}") from error
