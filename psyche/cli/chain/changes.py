"""What `psyche run update-config` changes: the settings of a file, and single texts from the command line."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche.cli.chain.first_weights import FirstWeights
from psyche.cli.helpers.owners import say
from psyche.config.load import LoadedRun, load_run
from psyche.config.update import build_update, compute_restart
from psyche.core.state.messages import Update
from psyche.core.state.state import Coordinator

if TYPE_CHECKING:
    from psyche.backends.port import Fitted, Target


@dataclass(frozen=True, slots=True)
class Changes:
    metadata: dict[str, Any]
    restart_from_step: int | None = None

    @property
    def is_any(self) -> bool:
        return bool(self.metadata) or self.restart_from_step is not None


def load_changes(file: LoadedRun | None, changes: Changes) -> Callable[[Coordinator], Update]:
    """Return what builds the update of a record from a file of settings, if there is one.

    The digest of other weights to begin with goes on record as at the run's creation; their files are read for it.
    """
    weights = FirstWeights(file)

    def build(record: Coordinator) -> Update:
        update = Update() if file is None else build_update(record, file)
        if changes.restart_from_step is not None:
            config, model = update.config or record.config, update.model or record.model
            progress = compute_restart(record, changes.restart_from_step, config, model)
            update = replace(update, progress=None if progress == record.progress else progress)
        if changes.metadata:
            metadata = replace(update.metadata or record.metadata, **changes.metadata)
            update = replace(update, metadata=None if metadata == record.metadata else metadata)
        return weights.complete(record, update)

    return build


def load_settings(path: Path, target: "Target") -> "Fitted":
    """Load a file of settings for a target, and print warnings."""
    fitted = target.fit(load_run(path))
    for warning in fitted.warnings:
        say(f"warning: {warning}")
    return fitted
