"""Copies of the model that is at a storage, file by file as it is there: headers and small files first."""

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from psyche.core.state.state import ZERO32
from psyche.durable import make_folder, sync_file, sync_folder
from psyche.errors import StorageError, TrainerError
from psyche.modeling.first_weights import INDEX_NAME, compute_weight_root, read_layout, read_stored_tensors
from psyche.modeling.model_facts import WatchedFiles
from psyche.modeling.model_files import FolderFiles, ModelFiles, StorageFiles, read_small_files
from psyche.modeling.user_files import CARD_NAME
from psyche.telemetry.text import format_bytes
from psyche.wire.crypto import blake3_hash, compute_state_digest

PARTS: Final = ".parts-"  # of a hidden folder beside the copy: what a killed one has left is gone on with
OTHER_NAMES: Final = (CARD_NAME, "LICENSE", "LICENSE.txt", "LICENSE.md")  # for people
_SMALLEST_BYTES: Final = 8 << 20  # read at once; more where that is quick, so that progress is seen on a slow line
_QUICK_S: Final = 1.0
_SHA256_DIGITS: Final = 64  # the Hub's version of a large file is its hash
Progress = Callable[[int, int], None]


def list_model_files(files: ModelFiles) -> list[str]:
    """The files that a copy of a model has; headers and small files are judged.

    Raises:
        TrainerError: there are no weights as safetensors, or they are not whole.
    """
    sizes = files.get_sizes()
    weights = {tensor.file for tensor in read_stored_tensors(files).values()}
    small = {*read_small_files(files), *(name for name in (INDEX_NAME, *OTHER_NAMES) if name in sizes)}
    return [*sorted(small), *sorted(weights)]


def copy_model(files: StorageFiles, path: Path, progress: Progress, check: Callable[[Path], None]) -> None:
    """Copy a model to a new folder, which is whole or not there; blocks, in a thread of trio.

    `check` judges the copy before it gets its name; what it refuses is removed.

    Raises:
        StorageError, TrainerError: the place gives no model, or the disk has no room for it.
    """
    names = list_model_files(files)
    sizes = files.get_sizes()
    versions = {name: files.get_version(name) for name in names}
    folder = path.parent / f".{path.name}{PARTS}{blake3_hash(repr((files.address, versions)).encode()).hex()[:16]}"
    for other in path.parent.glob(f".{path.name}{PARTS}*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    make_folder(folder)
    total = sum(sizes[name] for name in names)
    missing_bytes = total - sum(file.stat().st_size for file in folder.iterdir())
    if (free_bytes := shutil.disk_usage(folder).free) < missing_bytes:
        raise TrainerError(
            f"{path}: the disk has {format_bytes(free_bytes)} free, {format_bytes(missing_bytes)} are missing; free "
            "some space, or name a folder on another disk"
        )
    done = 0
    for name in names:
        _copy_file(files, name, folder / name, sizes[name], lambda n, m=done: progress(m + n, total))
        done += sizes[name]
    try:
        check(folder)
    except StorageError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    sync_folder(folder)
    folder.replace(path)
    sync_folder(path.parent)


def _copy_file(files: StorageFiles, name: str, path: Path, size_bytes: int, tell: Callable[[int], None]) -> None:
    piece = _SMALLEST_BYTES
    with path.open("ab") as file:
        start = file.tell()
        while start < size_bytes:
            began_s = time.monotonic()
            end = min(size_bytes, start + piece)
            files.copy(name, start, end, file)
            tell(start := end)
            if time.monotonic() - began_s < _QUICK_S:
                piece = min(2 * piece, files.piece_bytes)
    tell(size_bytes)
    version = files.get_version(name)
    if len(version) == _SHA256_DIGITS and _compute_sha256(path) != version:
        path.unlink()
        raise StorageError(f"{files.address}/{name}: has other bytes than its hash says; start again to read it anew")
    sync_file(path)


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(folder: Path, digest: bytes, *, is_exact: bool, progress: Progress) -> None:
    """Check a copy against a digest on record; may be cancelled, in a thread of trio.

    Raises:
        StorageError: it has another one.
    """
    files = FolderFiles(folder)
    total = sum(files.get_sizes().values())

    def tell(done: int) -> None:
        trio.from_thread.check_cancelled()
        progress(done, total)

    layout = read_layout(files)
    root = compute_weight_root(WatchedFiles(files, tell), layout, is_exact=is_exact)
    found = [compute_state_digest(chain, root) for chain in (layout.chain, ZERO32)]
    if digest not in found:
        raise StorageError(f"gives {found[0].hex()[:16]}, the record asks for {digest.hex()[:16]}")
