"""Weights as safetensors files with an index, written tensor by tensor; no torch here."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.core.state.state import ZERO32
from psyche.durable import sync_file, write_file
from psyche.modeling.first_weights import (
    CHAIN_KEY,
    INDEX_NAME,
    VALUE_BYTES,
    WEIGHTS_NAME,
    read_stored_tensors,
    read_values,
)
from psyche.modeling.model_card import CARD_NAME
from psyche.modeling.model_files import ModelFiles, read_small_files
from psyche.modeling.snapshot import SnapshotInfo, read_snapshot_files, write_folder, write_model_files
from psyche.modeling.user_files import build_user_files
from psyche.wire.crypto import BLOB_CHUNK_BYTES

MAX_SHARD_BYTES: Final = 5 << 30  # the largest weight file, as with the Hub's own tools
_ALIGN_BYTES: Final = 8

Values = Callable[[str], Iterable[bytes | memoryview]]  # a tensor's values in the type that is written


def write_weights(
    folder: Path, dims: Mapping[str, Sequence[int]], dtype: str, read_values: Values,
    *, metadata: Mapping[str, str] | None = None, max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:  # fmt: skip
    """Write tensors of a type of `VALUE_BYTES`; no file is larger than `max_shard_bytes`, unless one tensor is."""
    sizes = {name: math.prod(edges) * VALUE_BYTES[dtype] for name, edges in dims.items()}
    shards = _split(sizes, max_shard_bytes)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = WEIGHTS_NAME if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        places |= dict.fromkeys(names, file)
        header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
        end = 0
        for name in names:
            start, end = end, end + sizes[name]
            header[name] = {"dtype": dtype, "shape": list(dims[name]), "data_offsets": [start, end]}
        _write_shard(folder / file, header, (part for name in names for part in read_values(name)))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
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


def _write_shard(path: Path, header: Mapping[str, object], parts: Iterable[bytes | memoryview]) -> None:
    """Write a safetensors file: length of the header u64, header, then the values of one tensor after the other."""
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % _ALIGN_BYTES)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for part in parts:
            file.write(part)
    sync_file(path)


def write_snapshot_folder(
    path: Path, info: SnapshotInfo, card: str, *, dtype: str = "float32", max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write a snapshot's weights as a Hugging Face folder; one that is there is replaced.

    In float32 it is what the record's digest says: the run's own small files, and the chain digest in the metadata.
    In bfloat16 it is for people: rounded, with completed small files.
    """
    paths = {blob.name: blob.path for blob in info.blobs[: len(info.entries)]}

    def read_fp32(name: str) -> Iterable[bytes]:
        with paths[name].open("rb") as file:
            while chunk := file.read(BLOB_CHUNK_BYTES):
                yield chunk

    dims = {entry.name: entry.dims for entry in info.entries}
    layout = _Layout(dims, read_snapshot_files(info), info.chain)
    _write_folder(path, layout, read_fp32, card, dtype=dtype, max_shard_bytes=max_shard_bytes)


def write_rounded_folder(path: Path, files: ModelFiles, card: str) -> None:
    """Write a model, of whatever architecture, once more for people: in bfloat16, with completed small files.

    Raises:
        TrainerError: it has no weights that can be read.
    """
    tensors = read_stored_tensors(files)
    layout = _Layout({name: tensor.dims for name, tensor in tensors.items()}, read_small_files(files), ZERO32)
    _write_folder(path, layout, lambda name: read_values(files, name, tensors[name]), card, dtype="bfloat16")


@dataclass(frozen=True, slots=True)
class _Layout:
    dims: Mapping[str, Sequence[int]]
    small: Mapping[str, bytes]
    chain: bytes


def _write_folder(
    path: Path, layout: _Layout, read_fp32: Callable[[str], Iterable[bytes]], card: str, *, dtype: str,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:  # fmt: skip
    is_exact = dtype == "float32"

    def read_wanted(name: str) -> Iterable[bytes]:
        return read_fp32(name) if is_exact else map(_round, read_fp32(name))

    with write_folder(path) as folder:
        write_weights(
            folder, layout.dims, "F32" if is_exact else "BF16", read_wanted,
            metadata={CHAIN_KEY: layout.chain.hex()}, max_shard_bytes=max_shard_bytes,
        )  # fmt: skip
        write_model_files(folder, layout.small if is_exact else build_user_files(layout.small, dtype))
        write_file(folder / CARD_NAME, card.encode())


def _round(raw: bytes) -> bytes:
    """Round fp32 to bf16, halves to even."""
    import numpy as np

    bits = np.frombuffer(raw, "<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
