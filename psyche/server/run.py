"""The run of a server: created, or recovered from its folder and checked against the given configuration."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from psyche.config.load import LoadedRun
from psyche.core.encoding.account import decode_config, decode_model, encode_config, encode_model, encode_state
from psyche.core.encoding.data_manifest import MAX_DATA_MANIFEST_BYTES
from psyche.core.state.genesis import create_run
from psyche.core.state.state import ZERO32, Checkpoint, Coordinator, Model
from psyche.durable import read_file
from psyche.errors import ConfigError, PsycheError, UnusableModelError
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import ModelFiles, use_model_files
from psyche.server.journal.journal import JournalDisk, JournalError
from psyche.server.journal.recovery import OpenRun, create_journal, recover
from psyche.storage.port import StorageOptions
from psyche.wire.crypto import blake3_hash, blob_id_of

FILE_HASH_NAME: Final = "run-file.hash"  # of the run's file that the record was last equal to, and of changes since
HASH_BYTES: Final = 32
KEPT_CHANGES: Final = 64
NOT_ON_RECORD: Final = (
    "the first weights are not on record, so every client needs the model folder, or a quorum of others that show the "
    "same weights"
)


def compute_run_uid(server_key: bytes, run_id: str, created_unix: int) -> bytes:
    """Compute the id that every signature includes (2.3); a run recreated under its old name gets another one."""
    return hashlib.sha256(server_key + run_id.encode() + created_unix.to_bytes(8, "little")).digest()


def open_run(
    disk: JournalDisk, file: LoadedRun, server_key: bytes, program: str, now: Callable[[], int], *,
    accept_loss: bool = False, model_folder: Path | None = None, storage: StorageOptions | None = None,
) -> OpenRun:  # fmt: skip
    """Recover the run on the disk, or create it; blocks on the disk. `accept_loss`: see `recover`.

    `model_folder` is where this machine would have the run's model; a new run is bound to the weights there (S11).

    Raises:
        ConfigError: the folder holds another run, or this one with other settings, or the first weights are no numbers.
        CoordinatorError: the configuration of a new run breaks a rule.
        JournalError: the journal is broken or the disk failed.
    """
    found = recover(disk, accept_loss=accept_loss)
    if found is not None:
        found.notes += _check_file(disk, found.state, file)
        return found
    created = now()
    uid = compute_run_uid(server_key, file.run_id, created)
    first = read_first_model(file.model, model_folder, storage)
    model = replace(file.model, checkpoint=first.source)
    state = create_run(
        file.config, model, file.run_id, uid, file.metadata, program, created, progress=file.progress,
        bootstrap=file.bootstrap, first_weights=first.digest,
    )  # fmt: skip
    state.pending_pause = file.pending_pause
    journal = create_journal(disk, created, encode_state(state))
    _remember_file(disk, file)
    return OpenRun(state, journal, created, notes=first.notes, is_new=True)


@dataclass(frozen=True, slots=True)
class FirstModel:
    """The source of a run's first weights as it goes on record: of a repository, with the commit that was read.

    `digest` is zero if the model cannot be read here; then `notes` say why (S11).
    """

    source: Checkpoint
    digest: bytes = ZERO32
    notes: tuple[str, ...] = ()


def read_first_model(model: Model, folder: Path | None, storage: StorageOptions | None = None) -> FirstModel:
    """Compute the full digest of a run's first weights; `folder` is where a Local model would be on this machine.

    Blocks, with or without trio around it: it reads all weights. `storage`: as `use_model_files`.

    Raises:
        ConfigError: nobody could train from these weights.
    """

    def read(files: ModelFiles) -> FirstModel:
        digest = compute_first_digest(files, is_exact=model.optimizer.is_exact)
        return FirstModel(replace(model.checkpoint, revision=files.revision or model.checkpoint.revision), digest)

    try:
        return use_model_files(model.checkpoint, folder, read, storage) or FirstModel(model.checkpoint)
    except UnusableModelError as error:
        raise ConfigError(f"the first weights: {error}") from error
    except (PsycheError, OSError, ImportError) as error:
        return FirstModel(model.checkpoint, notes=(f"{NOT_ON_RECORD}: {error}",))


def read_data_manifest(path: Path) -> tuple[bytes, bytes]:
    """The id of a data manifest, and its bytes; zeros and nothing where it cannot be read (D1)."""
    try:
        raw = read_file(path, MAX_DATA_MANIFEST_BYTES)
    except OSError:
        return ZERO32, b""
    return blob_id_of(raw), raw


def _check_file(disk: JournalDisk, state: Coordinator, file: LoadedRun) -> tuple[str, ...]:
    """Check that the file describes this run; return notes for the user.

    The record counts. It may differ from the file where its owner has changed the run since (P9), also more than once,
    but not because somebody has edited the file: such changes would have no effect.
    """
    if state.run_id != file.run_id:
        raise ConfigError(
            f"run_id: the state folder holds the run {state.run_id!r}, not {file.run_id!r}; give the new run an empty "
            "state folder"
        )
    differences = ", ".join(_find_differences(state, file))
    if not differences:
        _remember_file(disk, file)
        return ()
    if hash_settings(file) in _read_hashes(disk):
        note = "the owner has changed this since the run's file was written; the run keeps its own settings"
        return (f"{differences}: {note}",)
    raise ConfigError(
        f"{differences}: differs from the run in the state folder; start the server with the file as it was and change "
        "the run with `psyche run update-config`, or give a new run an empty state folder"
    )


def _find_differences(state: Coordinator, file: LoadedRun) -> Iterator[str]:
    """Find the keys of a run's file whose values are not those on record; sources of weights are not compared."""
    config, model = decode_config(encode_config(file.config)), decode_model(encode_model(file.model))
    for table, recorded, wanted in (("config", state.config, config), ("model.LLM", state.model, model)):
        for name in type(wanted).__slots__:
            if "checkpoint" not in name and getattr(recorded, name) != getattr(wanted, name):
                yield f"{table}.{name}"
    if state.bootstrap != [*file.bootstrap]:
        yield "bootstrap"


def hash_settings(of: Coordinator | LoadedRun) -> bytes:
    """Compute a hash of what `_find_differences` compares, of the record or of a run's file."""
    parts = (encode_config(of.config), encode_model(of.model, zero_checkpoints=True), *map(str.encode, of.bootstrap))
    return blake3_hash(*parts)


def _read_hashes(disk: JournalDisk) -> list[bytes]:
    """Read the hashes of the run's file as it was when the record was last equal to it, and of all settings since."""
    raw = disk.read(FILE_HASH_NAME) if FILE_HASH_NAME in disk.names() else b""
    return [raw[start : start + HASH_BYTES] for start in range(0, len(raw), HASH_BYTES)]


def remember_change(disk: JournalDisk, settings_hash: bytes) -> None:
    """Remember settings that an owner has given the run: a file that has them was sent, not just edited (P9)."""
    known = _read_hashes(disk)
    if settings_hash not in known:
        _write_hashes(disk, [*known[:1], *known[1:][-KEPT_CHANGES:], settings_hash])


def _remember_file(disk: JournalDisk, file: LoadedRun) -> None:
    hashes = [hash_settings(file)]
    if _read_hashes(disk) != hashes:
        _write_hashes(disk, hashes)


def _write_hashes(disk: JournalDisk, hashes: list[bytes]) -> None:
    try:
        disk.replace(FILE_HASH_NAME, b"".join(hashes))
    except OSError as error:
        raise JournalError(f"state folder: {FILE_HASH_NAME} cannot be written: {error}") from error
