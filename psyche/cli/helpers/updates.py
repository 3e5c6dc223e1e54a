"""What an owner changes of a run on record: settings of a file, texts of the command line, and its first weights."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche.cli.helpers.common import say
from psyche.config.load import LoadedRun, load_run
from psyche.config.update import build_update, compute_restart, is_first_start, is_other_start
from psyche.core.state.messages import Update
from psyche.core.state.state import ZERO32, CheckpointKind, Coordinator
from psyche.server.run import NOT_ON_RECORD, find_first_weights

if TYPE_CHECKING:
    from psyche.backends.port import Fitted, Target


def load_changes(
    file: LoadedRun | None, texts: dict[str, Any], restart_from_step: int | None
) -> Callable[[Coordinator], Update]:
    """Return what builds the update of a record from a file of settings, if there is one, and from texts.

    The digest of other weights to begin with goes on record as at the run's creation; their files are read for it.
    """
    weights = FirstWeights(file)

    def build(record: Coordinator) -> Update:
        update = Update() if file is None else build_update(record, file)
        if restart_from_step is not None:
            config, model = update.config or record.config, update.model or record.model
            progress = compute_restart(record, restart_from_step, config, model)
            update = replace(update, progress=None if progress == record.progress else progress)
        if texts:
            metadata = replace(update.metadata or record.metadata, **texts)
            update = replace(update, metadata=None if metadata == record.metadata else metadata)
        return weights.complete(record, update)

    return build


def load_settings(path: Path, target: "Target") -> "Fitted":
    """Load a file of settings for a target, and print warnings."""
    fitted = target.fit(load_run(path))
    for warning in fitted.file.warnings:
        say(f"warning: {warning}")
    return fitted


def read_first_weights(file: LoadedRun) -> bytes:
    """Compute the full digest of the model that a run begins with, and say so; zero if its folder is not here (S11)."""
    folder = file.model_folder
    if folder is None:
        return ZERO32
    if folder.is_dir():
        say(f"reading the first weights in {folder}")
    digest, notes = find_first_weights(file.model, folder)
    if digest == ZERO32:
        note = f"{NOT_ON_RECORD}: there is no folder {folder}"
        say(f"warning: {'; '.join(notes) or note}")
    return digest


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """Completes updates of a run by the digest of the weights that its next epoch starts from (S11).

    `file` is the run.toml from whose folder the model's is found; None: there is none. Each folder is read once.
    """

    file: LoadedRun | None
    _known: dict[Path | None, bytes] = field(default_factory=dict[Path | None, bytes])

    def complete(self, state: Coordinator, update: Update) -> Update:
        """Return the update with the digest, or as it is: the run keeps its weights, or their folder is not here."""
        model, is_other = update.model or state.model, is_other_start(state, update)
        if self.file is None:
            if is_other:
                self._ask_for_file(model.checkpoint.kind)
            return update
        file = replace(self.file, model=model)
        folder = file.model_folder
        if not is_other and not (is_first_start(state) and folder is not None and folder.is_dir()):
            return update
        digest = self._read(file)
        is_known = not is_other and digest == state.certified.digest
        return update if is_known or digest == ZERO32 else replace(update, first_weights=digest)

    def _ask_for_file(self, source: CheckpointKind) -> None:
        if source is CheckpointKind.LOCAL and None not in self._known:
            self._known[None] = ZERO32
            say(f"warning: {NOT_ON_RECORD}: name the run.toml beside it with --state to put them there")

    def _read(self, file: LoadedRun) -> bytes:
        folder = file.model_folder
        if folder not in self._known:
            self._known[folder] = read_first_weights(file)
        return self._known[folder]
