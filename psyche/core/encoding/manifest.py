"""Canonical lists of a model's tensors and small files; their hash is the weight part of a state digest (S2)."""

import itertools
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from psyche.core.encoding.reader import Reader, encode_shape, take_dims, take_name
from psyche.core.state.limits import HASH_BYTES
from psyche.errors import WireError

MODEL_TAG: Final = b"psyche/model/2"
SLICES: Final = 64  # a slice digest covers 1/64 of the weights, drawn at random; 64 rounds cover most of them
FILE_NAMES: Final = frozenset({
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
})  # fmt: skip  # files that determine a model's computation and text; never code, never a path
MAX_MODEL_FILES: Final = 16  # checked before the first file is read
MAX_MODEL_FILES_BYTES: Final = 64 << 20  # of all files together; the largest tokenizers have about 20 MB


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its name, its dimensions, and the blob id (32 bytes) of its fp32 little-endian bytes."""

    name: str
    dims: tuple[int, ...]
    blob_id: bytes


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One small file of the model: one of `FILE_NAMES`, its length, and the blob id (32 bytes) of its bytes."""

    name: str
    size_bytes: int
    blob_id: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete model: its tensors and its small files, each list sorted by name."""

    tensors: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]


def check_files(files: Iterable[FileEntry]) -> None:
    """Refuse files that a run's model may not have; callers check before they read or fetch any of them.

    Raises:
        WireError: a name is not one of `FILE_NAMES` or appears twice, or the files are too large in total.
    """
    names: set[str] = set()
    size_bytes = 0
    for file in files:
        if file.name not in FILE_NAMES:
            raise WireError(f"manifest: model file {file.name[:80]!a} is not allowed in a run's model")
        if file.name in names:
            raise WireError(f"manifest: model file {file.name!a} appears twice")
        names.add(file.name)
        size_bytes += file.size_bytes
    if size_bytes > MAX_MODEL_FILES_BYTES:
        raise WireError(f"manifest: the model files have {size_bytes} bytes in all, at most {MAX_MODEL_FILES_BYTES}")


def encode_files(files: Iterable[FileEntry]) -> bytes:
    """The part of a manifest or slice that lists the small files.

    Number of files u32 | per file, sorted by name: name length u16, name, file length u64, blob id 32.

    Raises:
        WireError: as `check_files`, or a blob id does not have 32 bytes.
    """
    ordered = sorted(files, key=lambda file: file.name)
    check_files(ordered)
    _check_ids(ordered)
    body = b"".join(
        struct.pack("<H", len(file.name)) + file.name.encode() + struct.pack("<Q", file.size_bytes) + file.blob_id
        for file in ordered
    )
    return struct.pack("<I", len(ordered)) + body


def _check_ids(entries: Iterable[TensorEntry | FileEntry]) -> None:
    if any(len(entry.blob_id) != HASH_BYTES for entry in entries):
        raise WireError(f"manifest: every blob id must have {HASH_BYTES} bytes")


def encode_manifest(entries: Iterable[TensorEntry], files: Iterable[FileEntry]) -> bytes:
    """The manifest's canonical bytes; they do not depend on the order of `entries` and `files`.

    Tag | number of tensors u32 | per tensor, sorted by name: name length u16, name, number of dimensions u8,
    each dimension u32, blob id 32 | the small files (`encode_files`).

    Raises:
        WireError: two tensors or files have the same name, or the format cannot hold a value.
    """
    ordered = sorted(entries, key=lambda entry: entry.name)
    for before, after in itertools.pairwise(ordered):
        if before.name == after.name:
            raise WireError(f"manifest: tensor {after.name!a} appears twice")
    _check_ids(ordered)
    body = b"".join(encode_shape(entry.name, entry.dims) + entry.blob_id for entry in ordered)
    return MODEL_TAG + struct.pack("<I", len(ordered)) + body + encode_files(files)


def decode_manifest(raw: bytes) -> Manifest:
    """Read a manifest; an accepted manifest encodes back to the same bytes.

    Raises:
        WireError: the tag is wrong, bytes are missing or left over, names are not UTF-8 or not in ascending order,
            or a file is not allowed (`check_files`).
    """
    reader = Reader(raw, "manifest")
    reader.expect(MODEL_TAG, "tag")
    tensors: list[TensorEntry] = []
    for _ in range(reader.take_number(4, "number of tensors")):
        entry = TensorEntry(take_name(reader, "name"), take_dims(reader), reader.take(HASH_BYTES, "blob id"))
        if tensors and entry.name <= tensors[-1].name:
            raise reader.fail(f"names do not rise at {entry.name!a}")
        tensors.append(entry)
    files = _read_files(reader)
    reader.finish()
    return Manifest(tuple(tensors), files)


def _read_files(reader: Reader) -> tuple[FileEntry, ...]:
    count = reader.take_number(4, "number of files")
    if count > MAX_MODEL_FILES:
        raise reader.fail(f"{count} model files, at most {MAX_MODEL_FILES} may be there")
    files: list[FileEntry] = []
    for _ in range(count):
        name, size_bytes = take_name(reader, "file name"), reader.take_number(8, "file length")
        file = FileEntry(name, size_bytes, reader.take(HASH_BYTES, "file's blob id"))
        if files and file.name <= files[-1].name:
            raise reader.fail(f"names of files do not rise at {file.name[:80]!a}")
        files.append(file)
    check_files(files)
    return tuple(files)


def blank_values(manifest: Manifest) -> Manifest:
    """The manifest with zeroed tensor ids: equal for all members even if their arithmetic is not exact (S2)."""
    return Manifest(tuple(replace(entry, blob_id=bytes(HASH_BYTES)) for entry in manifest.tensors), manifest.files)


def describe_file_differences(own: Iterable[FileEntry], right: Iterable[FileEntry]) -> str:
    """Describe in words how the small files `own` differ from `right`; empty if they are equal."""
    here, there = ({file.name: file for file in files} for files in (own, right))
    parts = {
        "different content": [name for name in here.keys() & there.keys() if here[name] != there[name]],
        "missing": there.keys() - here.keys(),
        "not part of the run's model": here.keys() - there.keys(),
    }
    return ", ".join(f"{name} ({what})" for what, names in parts.items() for name in sorted(names))


def compute_slice_chunks(total_chunks: int, random_seed: int) -> range:
    """The numbers of the 1 MiB chunks that a round's slice digest covers, ascending (S2).

    Chunks are numbered from 0 across all tensors, in the manifest's order.
    """
    return range(random_seed % SLICES, total_chunks, SLICES)


def encode_slice(items: Iterable[tuple[int, bytes]], files: Iterable[FileEntry]) -> bytes:
    """The canonical bytes of a slice.

    Tag | number of chunks u32 | per chunk, ascending: chunk number u32, chunk hash 32 | all small files
    (`encode_files`).

    Raises:
        WireError: a chunk number appears twice or exceeds 32 bits, a hash does not have 32 bytes; or as
            `encode_files`.
    """
    ordered = sorted(items)
    if len(dict(ordered)) != len(ordered):
        raise WireError("slice: a chunk number appears twice")
    if any(len(chunk_hash) != HASH_BYTES or not 0 <= number < 1 << 32 for number, chunk_hash in ordered):
        raise WireError(f"slice: every item is a number of 32 bits and a hash of {HASH_BYTES} bytes")
    body = b"".join(struct.pack("<I", number) + chunk_hash for number, chunk_hash in ordered)
    return MODEL_TAG + struct.pack("<I", len(ordered)) + body + encode_files(files)
