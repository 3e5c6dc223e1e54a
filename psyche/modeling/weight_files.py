"""Weights as safetensors files with an index, written tensor by tensor; no torch here."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from psyche.durable import sync_file, write_file
from psyche.modeling.first_weights import (
    CHAIN_KEY,
    INDEX_NAME,
    VALUE_BYTES,
    WEIGHTS_NAME,
    read_stored_tensors,
    read_values,
)
from psyche.modeling.model_files import ModelFiles, read_small_files
from psyche.modeling.snapshot import SnapshotInfo, read_snapshot_files, write_folder, write_model_files
from psyche.modeling.user_files import CARD_NAME, build_user_files
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


def write_snapshot_folder(path: Path, info: SnapshotInfo, card: str, *, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Write a snapshot's weights as a Hugging Face folder; one that is there is replaced.

    It is what the record's digest says: names of memory, the run's own small files, the chain digest in the metadata.
    """
    paths = {blob.name: blob.path for blob in info.blobs[: len(info.entries)]}

    def read_fp32(name: str) -> Iterable[bytes]:
        with paths[name].open("rb") as file:
            while chunk := file.read(BLOB_CHUNK_BYTES):
                yield chunk

    with write_folder(path) as folder:
        write_weights(
            folder, {entry.name: entry.dims for entry in info.entries}, "F32", read_fp32,
            metadata={CHAIN_KEY: info.chain.hex()}, max_shard_bytes=max_shard_bytes,
        )  # fmt: skip
        write_model_files(folder, read_snapshot_files(info))
        write_file(folder / CARD_NAME, card.encode())


def write_rounded_folder(path: Path, files: ModelFiles, card: str) -> None:
    """Write a model, of whatever architecture, once more for people: in bfloat16, with completed small files.

    Raises:
        TrainerError: it has no weights that can be read.
    """
    tensors = read_stored_tensors(files)
    with write_folder(path) as folder:
        dims = {name: tensor.dims for name, tensor in tensors.items()}
        write_weights(folder, dims, "BF16", lambda name: map(_round, read_values(files, name, tensors[name])))
        write_model_files(folder, build_user_files(read_small_files(files), "bfloat16"))
        write_file(folder / CARD_NAME, card.encode())


def _round(raw: bytes) -> bytes:
    """Round fp32 to bf16, halves to even."""
    import numpy as np

    bits = np.frombuffer(raw, "<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
