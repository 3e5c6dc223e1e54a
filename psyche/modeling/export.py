"""Models for users: Hugging Face folders, written tensor by tensor."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from psyche.durable import describe_write_error, sync_file, write_file
from psyche.errors import TrainerError
from psyche.modeling.model_card import CARD_NAME
from psyche.modeling.snapshot import write_folder, write_model_files
from psyche.modeling.user_files import build_user_files

# By what users call them: torch's type, and its name in a safetensors file.
EXPORT_DTYPES: Final = {
    "float32": (torch.float32, "F32"), "bfloat16": (torch.bfloat16, "BF16"), "float16": (torch.float16, "F16"),
}  # fmt: skip
MAX_SHARD_BYTES: Final = 5 << 30  # the largest weight file of an export, as with the Hub's own tools
INDEX_NAME: Final = "model.safetensors.index.json"
_ALIGN_BYTES: Final = 8


def export_model(
    path: Path, tensors: Mapping[str, torch.Tensor], model_files: Mapping[str, bytes], dtype: str, card: str,
    *, max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:  # fmt: skip
    """Write a Hugging Face folder that `AutoModelForCausalLM.from_pretrained` loads; replace an old one atomically.

    `tensors` are the fp32 masters and buffers, of which one at a time is copied and rounded to `dtype`. `model_files`
    (config.json and tokenizer files) are completed for users (`build_user_files`). No file of weights is larger than
    `max_shard_bytes`, unless one tensor is.
    """
    if dtype not in EXPORT_DTYPES:
        raise TrainerError(f"export {path}: dtype {dtype!r}, must be one of {', '.join(EXPORT_DTYPES)}")
    files = build_user_files(model_files, dtype)
    try:
        with write_folder(path) as folder:
            _write_weights(folder, tensors, dtype, max_shard_bytes)
            write_model_files(folder, files)
            write_file(folder / CARD_NAME, card.encode())
    except OSError as error:
        raise TrainerError(f"export {path}: cannot be written: {describe_write_error(error)}") from error


def _write_weights(folder: Path, tensors: Mapping[str, torch.Tensor], dtype: str, max_shard_bytes: int) -> None:
    value_bytes = EXPORT_DTYPES[dtype][0].itemsize
    shards = _split({name: tensor.numel() * value_bytes for name, tensor in tensors.items()}, max_shard_bytes)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        places |= dict.fromkeys(names, file)
        _write_shard(folder / file, {name: tensors[name] for name in names}, dtype)
    if len(shards) > 1:
        total = sum(tensor.numel() for tensor in tensors.values()) * value_bytes
        index = {"metadata": {"total_size": total}, "weight_map": places}
        write_file(folder / INDEX_NAME, json.dumps(index, indent=2).encode())


def _split(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size_bytes in sizes.items():
        if shards[-1] and filled + size_bytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size_bytes
    return shards


def _write_shard(path: Path, tensors: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Write a safetensors file: length of the header u64, header, then the values of one tensor after the other."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * EXPORT_DTYPES[dtype][0].itemsize
        header[name] = {"dtype": EXPORT_DTYPES[dtype][1], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % _ALIGN_BYTES)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, tensor in tensors.items():
            file.write(_get_values(name, tensor, dtype))
    sync_file(path)


def _get_values(name: str, tensor: torch.Tensor, dtype: str) -> memoryview:
    rounded = tensor.detach().to("cpu", EXPORT_DTYPES[dtype][0]).contiguous().reshape(-1)
    if dtype == "float16" and not bool(rounded.isfinite().all()) and bool(tensor.isfinite().all()):
        raise TrainerError(f"export: float16 cannot hold the values of {name}; export bfloat16 or float32")
    kind = {4: (torch.int32, "<i4"), 2: (torch.int16, "<i2")}[rounded.itemsize]
    array = rounded.view(kind[0]).numpy().astype(kind[1], copy=False)
    return memoryview(array.data).cast("B")
