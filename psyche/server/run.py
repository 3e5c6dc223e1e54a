"""The run of a server: created, or recovered from its folder and checked against the given configuration."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from psyche.core.encoding.account import encode_config, encode_model, encode_state
from psyche.core.state.genesis import create_run
from psyche.core.state.state import ZERO32, Config, Coordinator, Metadata, Model, Progress
from psyche.errors import ConfigError, PsycheError
from psyche.modeling.first_weights import compute_first_digest
from psyche.server.access import AccessChanges
from psyche.server.journal.journal import Journal, JournalDisk
from psyche.server.journal.recovery import create_journal, recover


class RunDefinition(Protocol):
    """A run's configuration as its owner wrote it (`config.load.LoadedRun`)."""

    @property
    def run_id(self) -> str:
        """The id of the run."""
        ...

    @property
    def config(self) -> Config:
        """The coordinator's settings."""
        ...

    @property
    def model(self) -> Model:
        """The model to train."""
        ...

    @property
    def metadata(self) -> Metadata:
        """The run's metadata, for people."""
        ...

    @property
    def progress(self) -> Progress:
        """The progress at which the run starts."""
        ...

    @property
    def bootstrap(self) -> tuple[str, ...]:
        """The bootstrap addresses of nodes of the run."""
        ...

    @property
    def pending_pause(self) -> bool:
        """Whether the run pauses when its first epoch ends."""
        ...


@dataclass(slots=True)
class OpenRun:
    """A run with its journal. `is_new`: nothing was recovered; `notes`: messages for the user about the recovery."""

    state: Coordinator
    journal: Journal
    now: int
    op_ids: tuple[bytes, ...]
    is_new: bool
    records: int
    notes: tuple[str, ...]
    access: AccessChanges = field(default_factory=AccessChanges)


def compute_run_uid(server_key: bytes, run_id: str, created_unix: int) -> bytes:
    """Compute the id that every signature includes (2.3); a run recreated under its old name gets another one."""
    return hashlib.sha256(server_key + run_id.encode() + created_unix.to_bytes(8, "little")).digest()


def open_run(
    disk: JournalDisk, file: RunDefinition, server_key: bytes, program: str, now: Callable[[], int], *,
    accept_loss: bool = False, model_folder: Path | None = None,
) -> OpenRun:  # fmt: skip
    """Recover the run on the disk, or create it; blocks on the disk. `accept_loss`: see `recover`.

    `model_folder` is where this machine would have the run's model; a new run is bound to the weights there (S11).

    Raises:
        ConfigError: the folder holds another run, or this one with other settings.
        CoordinatorError: the configuration of a new run breaks a rule.
        JournalError: the journal is broken or the disk failed.
    """
    found = recover(disk, accept_loss=accept_loss)
    if found is not None:
        _check_same(found.state, file)
        return OpenRun(
            found.state, found.journal, found.now, found.op_ids, is_new=False, records=found.records,
            notes=tuple(found.notes), access=found.access,
        )  # fmt: skip
    created = now()
    uid = compute_run_uid(server_key, file.run_id, created)
    first_weights, notes = find_first_weights(file.model, model_folder)
    state = create_run(
        file.config, file.model, file.run_id, uid, file.metadata, program, created, progress=file.progress,
        bootstrap=file.bootstrap, first_weights=first_weights,
    )  # fmt: skip
    state.pending_pause = file.pending_pause
    journal = create_journal(disk, created, encode_state(state))
    return OpenRun(state, journal, created, (), is_new=True, records=0, notes=notes)


def find_first_weights(model: Model, folder: Path | None) -> tuple[bytes, tuple[str, ...]]:
    """The full digest of the model in `folder`, zero if there is none, and notes for the user (S11)."""
    if folder is None or not folder.is_dir():
        return ZERO32, ()
    try:
        return compute_first_digest(folder, is_exact=model.optimizer.quantize_1bit), ()
    except (PsycheError, OSError, ImportError) as error:
        note = "every client needs the model folder, or a quorum of others that show the same weights (S11)"
        return ZERO32, (f"the first weights are not on record, so {note}: {error}",)


def _check_same(state: Coordinator, file: RunDefinition) -> None:
    advice = "start it with its original configuration, or give the new run an empty state folder"
    if state.run_id != file.run_id:
        raise ConfigError(f"run_id: the state folder holds the run {state.run_id!r}, not {file.run_id!r}; {advice}")
    if encode_config(state.config) != encode_config(file.config):
        names = ", ".join(_get_differences(state.config, file.config))
        raise ConfigError(f"[config] {names}: differs from the run in the state folder; {advice}")
    if state.bootstrap != [*file.bootstrap]:
        raise ConfigError(f"bootstrap: differs from the run in the state folder; {advice}")
    if encode_model(state.model, zero_checkpoints=True) != encode_model(file.model, zero_checkpoints=True):
        names = ", ".join(name for name in _get_differences(state.model, file.model) if "checkpoint" not in name)
        raise ConfigError(f"[model.LLM] {names}: differs from the run in the state folder; {advice}")


def _get_differences(one: Config | Model, other: Config | Model) -> list[str]:
    return [name for name in type(one).__slots__ if getattr(one, name) != getattr(other, name)]
