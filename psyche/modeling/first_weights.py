"""The digest of a run's first weights, from the files of a model folder: without torch, one MiB at a time (S11)."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.core.state.state import ZERO32
from psyche.durable import open_file, read_file
from psyche.errors import ConfigError, TrainerError, UnusableModelError
from psyche.modeling.model_config import check_model_settings, get_sizes, list_tensors
from psyche.modeling.snapshot import CONFIG_NAME, read_file_entries
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, compute_blob_id, compute_state_digest

WEIGHTS_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 100_000_000  # what the format allows
VALUE_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2}  # types whose values fp32 holds exactly
NOT_FINITE: Final = "has values that are NaN or infinite; training would never go on from them: take other weights"
_CHUNK_VALUES: Final = BLOB_CHUNK_BYTES // 4


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a safetensors file; its values begin at byte `offset`."""

    path: Path
    dtype: str
    dims: tuple[int, ...]
    offset: int


def compute_first_digest(folder: Path, *, is_exact: bool) -> bytes:
    """The full digest (32 bytes) that a trainer computes after it has loaded this model folder.

    `is_exact` is false in full-value mode, in which the digest leaves out the tensors' values (S2).
    """
    stored = read_stored_tensors(folder)
    ids = {name: _compute_blob_id(name, tensor) for name, tensor in stored.items()}
    _check_names(folder, stored)
    entries = [TensorEntry(name, tensor.dims, ids[name] if is_exact else ZERO32) for name, tensor in stored.items()]
    root = blake3_hash(encode_manifest(entries, read_file_entries(folder)))
    return compute_state_digest(ZERO32, root)


def read_stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a model folder by name, from the files that transformers reads; the values are not read."""
    if (folder / WEIGHTS_NAME).is_file():
        return _read_header(folder / WEIGHTS_NAME)
    index = folder / INDEX_NAME
    names = _read_table(index).get("weight_map")
    if not isinstance(names, dict):
        raise TrainerError(f"{index}: has no weight_map")
    found: dict[str, StoredTensor] = {}
    for name in sorted({str(name) for name in cast("Mapping[str, object]", names).values()}):
        if Path(name).name != name:
            raise TrainerError(f"{index}: {name!r} is not the name of a file in its folder")
        found |= _read_header(folder / name)
    return found


def _read_table(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(read_file(path, MAX_HEADER_BYTES))
    except OSError as error:
        raise TrainerError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TrainerError(f"{path}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise TrainerError(f"{path}: is not a table")
    return cast("dict[str, Any]", table)


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """Read a safetensors file's header: its length u64, then JSON with type, shape and place of each tensor."""
    try:
        with open_file(path) as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            raw = file.read(header_bytes) if header_bytes <= MAX_HEADER_BYTES else b""
        header = json.loads(raw)
        values_bytes = path.stat().st_size - 8 - header_bytes
        header.pop("__metadata__", None)
        return {name: _read_place(path, about, 8 + header_bytes, values_bytes) for name, about in header.items()}
    except OSError as error:
        raise TrainerError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise TrainerError(f"{path}: is not a whole safetensors file ({error})") from error


def _read_place(path: Path, about: Mapping[str, Any], start: int, values_bytes: int) -> StoredTensor:
    """A tensor's type, shape and place; raise ValueError unless its values lie in the file."""
    dtype, dims = str(about["dtype"]), tuple(int(edge) for edge in about["shape"])
    if dtype not in VALUE_BYTES:
        raise ValueError(f"values of {dtype}, which fp32 cannot hold exactly")
    first, end = about["data_offsets"]
    if not 0 <= first <= end <= values_bytes or end - first != math.prod(dims) * VALUE_BYTES[dtype]:
        raise ValueError("a tensor's values are cut off")
    return StoredTensor(path, dtype, dims, start + first)


def _compute_blob_id(name: str, tensor: StoredTensor) -> bytes:
    """The blob id of a tensor's fp32 values, of which one MiB at a time is in memory; all must be finite."""
    import numpy as np

    left = math.prod(tensor.dims)
    size_bytes, hashes = 4 * left, []
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        while left:
            count = min(left, _CHUNK_VALUES)
            values = _widen(file.read(count * VALUE_BYTES[tensor.dtype]), tensor.dtype)
            if not np.isfinite(np.frombuffer(values, "<f4")).all():
                raise UnusableModelError(f"{tensor.path}: {name} {NOT_FINITE}")
            hashes.append(blake3_hash(values))
            left -= count
    return compute_blob_id(size_bytes, b"".join(hashes))


def _widen(raw: bytes, dtype: str) -> bytes:
    if dtype == "F32":
        return raw
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).astype("<u4").tobytes()
    return np.frombuffer(raw, "<f2").astype("<f4").tobytes()


def _check_names(folder: Path, stored: Mapping[str, StoredTensor]) -> None:
    config = _read_table(folder / CONFIG_NAME)
    try:
        check_model_settings(folder / CONFIG_NAME, config)
    except ConfigError as error:
        raise TrainerError(str(error)) from error
    expected = {name for name, _ in list_tensors(get_sizes(config))}
    if wrong := sorted(expected ^ stored.keys()):
        what = "is missing" if wrong[0] in expected else "is not part of the model"
        raise TrainerError(f"{folder}: {wrong[0]} {what}, as {CONFIG_NAME} describes it")
