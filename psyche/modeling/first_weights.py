"""The digest of a run's first weights, from the files of a model: without torch, a piece at a time (S11)."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.core.state.state import ZERO32
from psyche.errors import ConfigError, TrainerError, UnusableModelError
from psyche.modeling.model_config import Dims, check_model_settings
from psyche.modeling.model_files import FolderFiles, ModelFiles, read_small_files
from psyche.modeling.snapshot import CONFIG_NAME, get_file_entries
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, compute_blob_id, compute_state_digest

WEIGHTS_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"
MAX_HEADER_BYTES: Final = 100_000_000  # what the format allows
VALUE_BYTES: Final = {"F32": 4, "BF16": 2, "F16": 2}  # types whose values fp32 holds exactly
NOT_FINITE: Final = "has values that are NaN or infinite; training would never go on from them: take other weights"
CHAIN_KEY: Final = "psyche_chain"  # in the metadata of uploaded weights
HEAD_BYTES: Final = 64 << 10  # read at once: most headers fit, and over a network a second question costs a round trip
_CHUNK_VALUES: Final = BLOB_CHUNK_BYTES // 4
_COMPUTED: Final = ".rotary_emb.inv_freq"  # older files have what transformers computes from the config


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a safetensors file; its values begin at byte `offset`."""

    file: str
    dtype: str
    dims: Dims
    offset: int

    @property
    def stored_bytes(self) -> int:
        return VALUE_BYTES[self.dtype] * math.prod(self.dims)


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """What is read of a model before its values: where each tensor is, and the small files, which fit each other.

    `chain` is the chain digest of weights that a client has uploaded (S2), zero for all others.
    """

    tensors: Mapping[str, StoredTensor]
    small: Mapping[str, bytes]
    chain: bytes


def compute_first_digest(files: ModelFiles, *, is_exact: bool) -> bytes:
    """The full digest (32 bytes) that a trainer computes after it has loaded this model.

    `is_exact` is false in full-value mode, in which the digest leaves out the tensors' values (S2).
    """
    return compute_state_digest(ZERO32, compute_weight_root(files, read_layout(files), is_exact=is_exact))


def gives_digest(folder: Path, digest: bytes, *, is_exact: bool = True) -> bool:
    """Whether a folder has the model of this full digest; all values are read."""
    try:
        return compute_first_digest(FolderFiles(folder), is_exact=is_exact) == digest
    except (TrainerError, OSError):
        return False


def compute_weight_root(files: ModelFiles, layout: ModelLayout, *, is_exact: bool) -> bytes:
    """The weight root (32 bytes) of a model whose headers have been read; all values are read (S2)."""
    ids = compute_blob_ids(files, layout.tensors)  # also judges the values
    entries = [TensorEntry(n, tensor.dims, ids[n] if is_exact else ZERO32) for n, tensor in layout.tensors.items()]
    return blake3_hash(encode_manifest(entries, get_file_entries(layout.small)))


def compute_blob_ids(files: ModelFiles, tensors: Mapping[str, StoredTensor]) -> dict[str, bytes]:
    """The blob ids (32 bytes) of tensors by name; reads all their values, which must be finite."""
    return {name: _compute_blob_id(files, name, tensor) for name, tensor in tensors.items()}


def read_layout(files: ModelFiles) -> ModelLayout:
    """Read headers and small files; values are not read.

    Whether names and shapes are those of the model (AR4), `model_check` says: transformers alone knows them.
    """
    tensors, metadata = _read_headers(files)
    small = read_small_files(files)
    _check_config(files, small)
    try:
        chain = bytes.fromhex(str(metadata.get(CHAIN_KEY, "")))
    except ValueError:
        chain = b""
    return ModelLayout(tensors, small, chain if len(chain) == len(ZERO32) else ZERO32)


def read_stored_tensors(files: ModelFiles) -> dict[str, StoredTensor]:
    """The tensors of a model by name, from the files that transformers reads; the values are not read."""
    return _read_headers(files)[0]


def _read_headers(files: ModelFiles) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Read tensors and metadata of all weight files."""
    sizes = files.get_sizes()
    if WEIGHTS_NAME in sizes:
        names: Sequence[str] = [WEIGHTS_NAME]
    else:
        raw = files.read(INDEX_NAME, 0, min(sizes.get(INDEX_NAME, 0), MAX_HEADER_BYTES))
        names = _list_files(f"{files.address}/{INDEX_NAME}", raw)
    found: dict[str, StoredTensor] = {}
    metadata: dict[str, Any] = {}
    for name in names:
        found |= _read_header(files, name, sizes.get(name, 0), metadata)
    return {name: tensor for name, tensor in found.items() if not name.endswith(_COMPUTED)}, metadata


def _list_files(index: str, raw: bytes) -> list[str]:
    names = _parse_table(index, raw).get("weight_map")
    if not isinstance(names, dict):
        raise TrainerError(f"{index}: has no weight_map")
    found = sorted({str(name) for name in cast("Mapping[str, object]", names).values()})
    if wrong := [name for name in found if Path(name).name != name]:
        raise TrainerError(f"{index}: {wrong[0]!r} is not the name of a file in its folder")
    return found


def _parse_table(place: str, raw: bytes) -> dict[str, Any]:
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TrainerError(f"{place}: is not JSON: {error}") from error
    if not isinstance(table, dict):
        raise TrainerError(f"{place}: is not a table")
    return cast("dict[str, Any]", table)


def _read_header(files: ModelFiles, name: str, size_bytes: int, metadata: dict[str, Any]) -> dict[str, StoredTensor]:
    """Read a safetensors file's header: its length u64, then JSON with type, shape and place of each tensor."""
    place = f"{files.address}/{name}"
    head = files.read(name, 0, min(size_bytes, HEAD_BYTES))
    header_bytes = int.from_bytes(head[:8], "little")
    try:
        if size_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise ValueError(f"{size_bytes} bytes, a header of {header_bytes}")
        raw = head[8:] + files.read(name, min(len(head), 8 + header_bytes), 8 + header_bytes)
        header = json.loads(raw[:header_bytes])
        metadata |= header.pop("__metadata__", {})
        values_bytes = size_bytes - 8 - header_bytes
        return {key: _read_place(name, about, 8 + header_bytes, values_bytes) for key, about in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise TrainerError(f"{place}: is not a whole safetensors file ({error})") from error


def _read_place(file: str, about: Mapping[str, Any], start: int, values_bytes: int) -> StoredTensor:
    """A tensor's type, shape and place; raise ValueError unless its values lie in the file."""
    dtype, dims = str(about["dtype"]), tuple(int(edge) for edge in about["shape"])
    if dtype not in VALUE_BYTES:
        raise ValueError(f"values of {dtype}, which fp32 cannot hold exactly")
    first, end = about["data_offsets"]
    if not 0 <= first <= end <= values_bytes or end - first != math.prod(dims) * VALUE_BYTES[dtype]:
        raise ValueError("a tensor's values are cut off")
    return StoredTensor(file, dtype, dims, start + first)


def read_values(
    files: ModelFiles, name: str, tensor: StoredTensor, stored: Iterable[bytes] | None = None
) -> Iterator[bytes]:
    """Read a tensor's values as fp32 little-endian bytes of one MiB; all must be finite.

    `stored` are its bytes in the file, in parts of whole MiB; None: they are read from there.
    """
    import numpy as np

    chunk_bytes = _CHUNK_VALUES * VALUE_BYTES[tensor.dtype]
    for part in _read_stored(files, tensor) if stored is None else stored:
        for place in range(0, len(part), chunk_bytes):
            values = _widen(part[place : place + chunk_bytes], tensor.dtype)
            if not np.isfinite(np.frombuffer(values, "<f4")).all():
                raise UnusableModelError(f"{files.address}/{tensor.file}: {name} {NOT_FINITE}")
            yield values


def _read_stored(files: ModelFiles, tensor: StoredTensor) -> Iterator[bytes]:
    end = tensor.offset + tensor.stored_bytes
    for first in range(tensor.offset, end, files.piece_bytes):
        yield from files.read_parts(tensor.file, first, min(end, first + files.piece_bytes))


def _compute_blob_id(files: ModelFiles, name: str, tensor: StoredTensor) -> bytes:
    hashes = [blake3_hash(values) for values in read_values(files, name, tensor)]
    return compute_blob_id(4 * math.prod(tensor.dims), b"".join(hashes))


def _widen(raw: bytes, dtype: str) -> bytes:
    if dtype == "F32":
        return raw
    import numpy as np

    if dtype == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).astype("<u4").tobytes()
    return np.frombuffer(raw, "<f2").astype("<f4").tobytes()


def _check_config(files: ModelFiles, small: Mapping[str, bytes]) -> None:
    place = f"{files.address}/{CONFIG_NAME}"
    if CONFIG_NAME not in small:
        raise TrainerError(f"{place}: there is no such file")
    config = _parse_table(place, small[CONFIG_NAME])
    try:
        check_model_settings(place, config)
    except ConfigError as error:
        raise TrainerError(str(error)) from error
