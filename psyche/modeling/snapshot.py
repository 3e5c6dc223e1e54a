"""Resume snapshots on disk: layout, reading, and assembly from fetched parts; no torch here.

A snapshot is a folder:

    snapshot.json          description (`SnapshotInfo`), with the hash of the momentum file
    manifest.bin           the manifest (`core.encoding.manifest`); its BLAKE3 is the weight root
    tensors/00000.bin ...  one file per tensor in manifest order: fp32, little-endian, row-major; each is a blob
    momentum.safetensors   the trainer's own momentum and undecided sent values (absent in a fetched snapshot)
    model/                 the model's small files (config.json, tokenizer) that the manifest lists; each is a blob

It is written atomically: under a temporary name, synced, then renamed. So a folder without a temporary name is
complete, unless the disk failed, which the hashes reveal.
"""

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from blake3 import blake3

from psyche.core.encoding.manifest import (
    FileEntry,
    Manifest,
    TensorEntry,
    decode_manifest,
    describe_file_differences,
    encode_manifest,
)
from psyche.core.state.state import ZERO32
from psyche.durable import make_folder, read_file, sync_file, sync_folder, write_file
from psyche.errors import PsycheError, TrainerError
from psyche.modeling.model_files import FolderFiles, read_small_files
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, blob_id_of, compute_blob_id

SNAPSHOT_VERSION: Final = 2
INFO_NAME: Final = "snapshot.json"
MANIFEST_NAME: Final = "manifest.bin"
MOMENTUM_NAME: Final = "momentum.safetensors"
TENSORS_NAME: Final = "tensors"
MODEL_NAME: Final = "model"
CONFIG_NAME: Final = "config.json"
MAX_INFO_BYTES: Final = 1 << 20
MAX_MANIFEST_BYTES: Final = 64 << 20  # enough for several hundred thousand tensors
_TEMPORARY: Final = ".tmp-"
_REPLACED: Final = ".old-"
_FP32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """One file of a snapshot as a blob: a tensor's fp32 little-endian bytes, or a small file of the model."""

    name: str
    path: Path
    blob_id: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """The description of a snapshot. Hashes have 32 bytes; `weight_root` is checked against the manifest.

    `digest` is D of the weights with the chain digest `chain` (S2). `plan` holds the transform plan's bytes, empty if
    no trainer wrote the snapshot. `train_count` is the number of batches trained with its momentum.
    """

    path: Path
    epoch: int
    step: int
    data_index: int
    chain: bytes
    digest: bytes
    weight_root: bytes
    plan: bytes
    prev_commitment: bytes
    train_count: int
    has_momentum: bool
    entries: tuple[TensorEntry, ...]
    files: tuple[FileEntry, ...]

    @property
    def manifest(self) -> bytes:
        """The manifest's bytes; their BLAKE3 is the weight root."""
        return encode_manifest(self.entries, self.files)

    @property
    def blobs(self) -> list[StoredBlob]:
        """Its tensors in manifest order, then the model's small files."""
        tensors = [
            StoredBlob(entry.name, get_tensor_path(self.path, index), entry.blob_id, get_tensor_bytes(entry))
            for index, entry in enumerate(self.entries)
        ]
        small = self.path / MODEL_NAME
        return tensors + [
            StoredBlob(file.name, small / file.name, file.blob_id, file.size_bytes) for file in self.files
        ]


_Count = Annotated[int, msgspec.Meta(ge=0)]
_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Hex = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]


class _Stored(msgspec.Struct):
    """What snapshot.json holds; the fields that a description has are between the version and the momentum."""

    version: int
    epoch: _Count
    step: _Count
    data_index: _Count
    chain: _Hash
    digest: _Hash
    weight_root: _Hash
    plan: _Hex
    prev_commitment: _Hash
    train_count: _Count
    momentum: dict[str, Any] | None = None


_SHARED: Final = _Stored.__struct_fields__[1:-1]


def get_tensor_path(folder: Path, index: int) -> Path:
    return folder / TENSORS_NAME / f"{index:05d}.bin"


def get_tensor_bytes(entry: TensorEntry) -> int:
    return math.prod(entry.dims) * _FP32_BYTES


def compute_file_blob_id(path: Path) -> tuple[int, bytes]:
    hashes: list[bytes] = []
    size_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(BLOB_CHUNK_BYTES):
            size_bytes += len(chunk)
            hashes.append(blake3_hash(chunk))
    return size_bytes, compute_blob_id(size_bytes, b"".join(hashes))


def compute_file_hash(path: Path) -> bytes:
    hasher = blake3()
    with path.open("rb") as file:
        while chunk := file.read(BLOB_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.digest()


def _replace(temporary: Path, path: Path, replaced: Path) -> None:
    """Rename `temporary` to `path`; an old folder there is kept as `replaced` until that is done."""
    if path.exists():
        path.rename(replaced)
    try:
        temporary.rename(path)
    except OSError:
        if replaced.exists():
            replaced.rename(path)
        raise
    sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


@contextmanager
def write_folder(path: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a temporary folder that becomes `path` at the end, or is removed on an error.

    An existing folder is replaced; at any moment one of the two is completely on disk.
    """
    make_folder(path.parent)
    tag = f"{os.getpid()}-{secrets.token_hex(4)}"
    temporary = path.parent / f".{path.name}{_TEMPORARY}{tag}"
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, _ in os.walk(temporary):
            sync_folder(Path(folder))
        _replace(temporary, path, path.parent / f".{path.name}{_REPLACED}{tag}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def clean_leftovers(root: Path) -> None:
    """Clean up after a killed process: remove half-written folders in `root`, restore a replaced one.

    Call it before anything writes there; two processes must never share a root.
    """
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        name = folder.name
        if not (folder.is_dir() and name.startswith(".")):
            continue
        if _REPLACED in name:
            original = root / name[1 : name.index(_REPLACED)]
            if not original.exists():
                folder.rename(original)
                continue
        if _REPLACED in name or _TEMPORARY in name:
            shutil.rmtree(folder, ignore_errors=True)


def _read_stored(path: Path) -> _Stored:
    try:
        fields = msgspec.json.decode(read_file(path / INFO_NAME, MAX_INFO_BYTES))
        version = fields.get("version") if isinstance(fields, dict) else None
        if version != SNAPSHOT_VERSION:
            raise TrainerError(f"snapshot {path}: version {version!r}, but this program reads {SNAPSHOT_VERSION}")
        return msgspec.convert(fields, _Stored)
    except OSError as error:
        raise TrainerError(f"snapshot {path}: {INFO_NAME}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a ValidationError names the field and what it must be
        raise TrainerError(f"snapshot {path}: {INFO_NAME} is damaged: {error}; use another snapshot") from error


def _read_manifest(path: Path, weight_root: bytes) -> Manifest:
    file = path / MANIFEST_NAME
    try:
        raw = read_file(file, MAX_MANIFEST_BYTES)
        manifest = decode_manifest(raw)
    except OSError as error:
        raise TrainerError(f"snapshot {path}: {MANIFEST_NAME}: {error.strerror}") from error
    except (PsycheError, ValueError) as error:
        raise TrainerError(f"snapshot {path}: {MANIFEST_NAME} is damaged: {error}") from error
    if blake3_hash(raw) != weight_root:
        raise TrainerError(f"snapshot {path}: {MANIFEST_NAME} does not match the weight root; use another snapshot")
    return manifest


def read_snapshot_info(path: Path) -> SnapshotInfo:
    """Read a snapshot's description and check that every file exists with its size (not yet its content)."""
    stored = _read_stored(path)
    values = {name: getattr(stored, name) for name in _SHARED}
    fields: dict[str, Any] = {name: bytes.fromhex(one) if isinstance(one, str) else one for name, one in values.items()}
    manifest = _read_manifest(path, fields["weight_root"])
    info = SnapshotInfo(
        path=path, has_momentum=stored.momentum is not None and (path / MOMENTUM_NAME).is_file(),
        entries=manifest.tensors, files=manifest.files, **fields,
    )  # fmt: skip
    for blob in info.blobs:
        if not blob.path.is_file() or blob.path.stat().st_size != blob.size_bytes:
            part = blob.name if blob.path.name == blob.name else f"{blob.path.name} of {blob.name}"
            raise TrainerError(f"snapshot {path}: {part} is missing or cut off; use another snapshot")
    return info


def read_momentum_fields(info: SnapshotInfo) -> dict[str, Any]:
    """Check the momentum file and return its description in snapshot.json: `pending` decisions by height."""
    fields = _read_stored(info.path).momentum or {}
    if compute_file_hash(info.path / MOMENTUM_NAME).hex() != fields.get("blake3"):
        raise TrainerError(f"snapshot {info.path}: {MOMENTUM_NAME} is damaged; load without momentum")
    return fields


def list_snapshots(root: Path) -> list[SnapshotInfo]:
    """List the readable snapshots in a folder, newest (epoch, step) first; unreadable ones are skipped."""
    found: list[SnapshotInfo] = []
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.name.startswith(".") or not (folder / INFO_NAME).is_file():
            continue
        try:
            found.append(read_snapshot_info(folder))
        except TrainerError:
            continue
    return sorted(found, key=lambda info: (info.epoch, info.step), reverse=True)


def read_model_files(folder: Path) -> dict[str, bytes]:
    """Read the small files (`FILE_NAMES`: config, tokenizer and the like) of a model folder, by file name."""
    return read_small_files(FolderFiles(folder))


def get_file_entries(files: Mapping[str, bytes]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(name, len(files[name]), blob_id_of(files[name])) for name in sorted(files))


def read_file_entries(folder: Path) -> tuple[FileEntry, ...]:
    """The manifest's entries for the small files of a model folder."""
    return get_file_entries(read_model_files(folder))


def read_snapshot_files(info: SnapshotInfo) -> dict[str, bytes]:
    """Read the model's small files in a snapshot and check them against its manifest."""
    files = read_model_files(info.path / MODEL_NAME)
    differing = describe_file_differences(get_file_entries(files), info.files)
    if differing:
        raise TrainerError(f"snapshot {info.path}: damaged model files: {differing}; use another snapshot")
    return files


def write_info(folder: Path, info: SnapshotInfo, momentum: Mapping[str, Any] | None) -> None:
    """Write snapshot.json into a snapshot's folder; `momentum` describes the momentum file (None: there is none)."""
    values = {name: getattr(info, name) for name in _SHARED}
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}
    stored = {"version": SNAPSHOT_VERSION, **fields, "momentum": momentum}
    write_file(folder / INFO_NAME, json.dumps(stored, indent=1).encode())


def write_model_files(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        write_file(folder / name, data)


def assemble_snapshot(
    path: Path,
    *,
    manifest: bytes,
    parts: Mapping[bytes, Path],
    epoch: int,
    step: int,
    data_index: int,
    chain: bytes,
    digest: bytes,
) -> SnapshotInfo:
    """Assemble a snapshot without momentum from fetched files (S9); they are moved, not copied.

    The caller has checked that `manifest` matches the digest on record. `parts` has a file for each tensor and small
    file by blob id; the ids are checked here. An existing folder at `path` is replaced atomically.
    """
    listed = decode_manifest(manifest)
    if all(file.name != CONFIG_NAME for file in listed.files):
        raise TrainerError(f"snapshot {path}: {CONFIG_NAME} of the model is missing")
    info = SnapshotInfo(
        path=path, epoch=epoch, step=step, data_index=data_index, chain=chain, digest=digest,
        weight_root=blake3_hash(manifest), plan=b"", prev_commitment=ZERO32, train_count=0,
        has_momentum=False, entries=listed.tensors, files=listed.files,
    )  # fmt: skip
    _check_parts(info, parts)
    with write_folder(path) as folder:
        (folder / TENSORS_NAME).mkdir()
        (folder / MODEL_NAME).mkdir()
        _move_parts(replace(info, path=folder).blobs, parts)
        write_file(folder / MANIFEST_NAME, manifest)
        write_info(folder, info, None)
    return info


def _check_parts(info: SnapshotInfo, parts: Mapping[bytes, Path]) -> None:
    for blob in info.blobs:
        if blob.blob_id not in parts:
            raise TrainerError(f"snapshot {info.path}: no file for {blob.name} of the manifest; fetch it again")
        if compute_file_blob_id(parts[blob.blob_id]) != (blob.size_bytes, blob.blob_id):
            raise TrainerError(
                f"snapshot {info.path}: {parts[blob.blob_id]} is not {blob.name} of the manifest; fetch it again"
            )


def _move_parts(blobs: Sequence[StoredBlob], parts: Mapping[bytes, Path]) -> None:
    """Move each part to its place; a part with several places (equal tensors) is copied to all but the last."""
    last = {blob.blob_id: blob for blob in blobs}
    for blob in blobs:
        place = shutil.move if last[blob.blob_id] is blob else shutil.copyfile
        place(parts[blob.blob_id], blob.path)
        sync_file(blob.path)
