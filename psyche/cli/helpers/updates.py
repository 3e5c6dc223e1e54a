"""What an owner changes of a run on record: settings of a file, texts of the command line, and its first weights."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche.cli.helpers.common import say
from psyche.config.load import LoadedRun, load_run
from psyche.config.update import build_update, compute_restart, is_first_start, is_other_start
from psyche.core.state.messages import Update
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator
from psyche.modeling.model_files import REMOTE
from psyche.server.run import NOT_ON_RECORD, FirstModel, read_first_model
from psyche.storage.port import StorageOptions

if TYPE_CHECKING:
    from psyche.backends.port import Fitted, Target


def load_changes(
    file: LoadedRun | None, texts: dict[str, Any], restart_from_step: int | None, storage: StorageOptions
) -> Callable[[Coordinator], Update]:
    """Return what builds the update of a record from a file of settings, if there is one, and from texts.

    The digest of other weights to begin with goes on record as at the run's creation; their files are read for it.
    """
    weights = FirstWeights(file, storage)

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


def load_settings(path: Path, target: "Target", data_manifest: str | None) -> "Fitted":
    """Load a file of settings for a target, and print warnings."""
    fitted = target.fit(load_run(path, data_manifest))
    for warning in fitted.file.warnings:
        say(f"warning: {warning}")
    return fitted


def read_first_weights(file: LoadedRun, storage: StorageOptions) -> FirstModel:
    """Compute the full digest of the model that a run begins with, and say so; zero if it is not here (S11)."""
    folder, source = file.model_folder, file.model.checkpoint
    if source.kind not in REMOTE and folder is None:
        return FirstModel(source)
    if source.kind in REMOTE or (folder is not None and folder.is_dir()):
        say(f"reading the first weights in {source.name if folder is None else folder}")
    first = read_first_model(file.model, folder, storage)
    if first.digest == ZERO32:
        note = f"{NOT_ON_RECORD}: there is no folder {folder}"
        say(f"warning: {'; '.join(first.notes) or note}")
    return first


@dataclass(frozen=True, slots=True)
class FirstWeights:
    """Completes updates of a run by the digest of the weights that its next epoch starts from (S11).

    `file` is the run.toml from whose folder the model's is found; None: there is none. Each source is read once.
    """

    file: LoadedRun | None
    storage: StorageOptions
    _known: dict[str, FirstModel] = field(default_factory=dict[str, FirstModel])

    def complete(self, state: Coordinator, update: Update) -> Update:
        """Return the update with the digest; as it is if the run keeps its weights, or they cannot be read here."""
        model, is_other = update.model or state.model, is_other_start(state, update)
        if self.file is None:
            if is_other:
                self._ask_for_file(model.checkpoint)
            return update
        file = replace(self.file, model=model)
        folder = file.model_folder
        is_here = model.checkpoint.kind in REMOTE or (folder is not None and folder.is_dir())
        if not is_other and not (is_first_start(state) and is_here):
            return update
        first = self._read(file)
        if first.digest == ZERO32 or (not is_other and first.digest == state.certified.digest):
            return update
        pinned = replace(model, checkpoint=first.source)
        return replace(update, model=None if pinned == state.model else pinned, first_weights=first.digest)

    def _ask_for_file(self, source: Checkpoint) -> None:
        if source.kind is CheckpointKind.LOCAL and "" not in self._known:
            self._known[""] = FirstModel(source)
            say(f"warning: {NOT_ON_RECORD}: name the run.toml beside it with --state to put them there")

    def _read(self, file: LoadedRun) -> FirstModel:
        source = f"{file.model.checkpoint} {file.model_folder}"
        if source not in self._known:
            self._known[source] = read_first_weights(file, self.storage)
        return self._known[source]
