"""Copies of certified weights in a shared folder, and their place on record (S10)."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from psyche.core.state.limits import LOCAL_PATH_BYTES
from psyche.core.state.state import Checkpoint, CheckpointKind, Coordinator
from psyche.durable import resolve_path, sync_file
from psyche.errors import ConfigError
from psyche.modeling.snapshot import INFO_NAME, MANIFEST_NAME, MODEL_NAME, TENSORS_NAME, write_folder

_MARK: Final = "-certified-"


def get_shared_name(run_id: str, epoch: int, step: int) -> str:
    return f"{run_id}{_MARK}{epoch:05d}-step-{step:08d}"


def check_shared_folder(folder: Path, local_root: Path, run_id: str) -> None:
    """Check that others find snapshots in `folder` from their own `local_root`, and that its name is short enough."""
    path = folder / get_shared_name(run_id, 0xFFFF, 0xFFFFFFFF)
    try:
        name = _get_name(path, local_root)
    except ValueError as error:
        raise ConfigError(
            f"--share-checkpoints: {folder} does not lie in --local-root {local_root}, so no other client could find "
            "what is put there; name a folder of a drive that all clients reach, below the local root of each"
        ) from error
    if len(name.encode()) > LOCAL_PATH_BYTES:
        raise ConfigError(f"--share-checkpoints: {name} has more than {LOCAL_PATH_BYTES} bytes; use a shorter path")


def _get_name(path: Path, local_root: Path) -> str:
    return resolve_path(path, "").relative_to(resolve_path(local_root, "")).as_posix()


def share_snapshot(snapshot: Path, path: Path, local_root: Path) -> Checkpoint:
    """Put a snapshot's weights, without momentum, where others can load them; return the source to name on record.

    Files are hard-linked if the disk allows it, because a snapshot's files never change. An existing folder is kept.
    """
    if not (path / INFO_NAME).is_file():
        with write_folder(path) as folder:
            for name in (INFO_NAME, MANIFEST_NAME):
                _link(snapshot / name, folder / name)
            for name in (TENSORS_NAME, MODEL_NAME):
                shutil.copytree(snapshot / name, folder / name, copy_function=_link)
    return Checkpoint(CheckpointKind.LOCAL, _get_name(path, local_root))


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, target)
        sync_file(Path(target))


def remove_old_shared(root: Path, run_id: str, local_root: Path, kept: Collection[str]) -> None:
    """Remove what this run has shared here before, except places on record and the newest."""
    found = sorted(folder for folder in root.glob(f"{run_id}{_MARK}*") if folder.is_dir())
    for folder in found[:-1]:
        if _get_name(folder, local_root) not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def get_names_on_record(state: Coordinator) -> frozenset[str]:
    """The Local places from which the checkpoint on record can be loaded."""
    sources = (state.model.checkpoint, *state.model.extra_checkpoints)
    return frozenset(s.name for s in sources if s.kind is CheckpointKind.LOCAL)
