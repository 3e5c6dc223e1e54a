"""What a run's owner can know before anybody joins: whether the run's model can be trained, and on these tokens."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from psyche.config.load import LoadedData, LoadedRun, find_local_data
from psyche.config.problems import ConfigProblems, Problem
from psyche.config.validate import ConfigReport, has_token_files, validate_config
from psyche.core.state.state import CheckpointKind, DataLocationKind, DataType
from psyche.data.prepared.rows import open_rows
from psyche.data.provider import find_rows, has_own_rows, open_files, open_local
from psyche.errors import ConfigError, DataError, StorageError, StorageRefused, TrainerError
from psyche.modeling.model_check import ModelCheck, check_model, check_model_files
from psyche.modeling.model_files import REMOTE, use_model_files
from psyche.modeling.trainer.describe import describe_model
from psyche.server.run import read_first_model
from psyche.storage.port import StorageOptions

if TYPE_CHECKING:
    from psyche.data.local import TokenRows
    from psyche.data.prepared.rows import PreparedRows

MODEL_CONFIGS: Final = ("model.json", "model.toml")  # beside the run's file: what first weights are made from
_CHECKPOINT: Final = ("model", "LLM", "checkpoint")
_DATA: Final = ("model", "LLM", "data_location")
_VOCABULARY: Final = ("metadata", "vocab_size")


def validate_run(
    state: Path,
    data_config: Path | None = None,
    data_manifest: str | None = None,
    *,
    reads_weights: bool = False,
    storage: StorageOptions | None = None,
) -> ConfigReport:
    """Check a run's configuration as `validate_config` does, and what is on this machine of its model and data.

    Blocks on the disk: of tokens at most 256 MiB are read, of weights only headers, unless `reads_weights`. Then the
    headers of a repository or bucket are read too, and transformers is asked where it is installed; not within trio.
    """
    report = validate_config(state, data_config, data_manifest)
    if report.run is None:
        return report
    found = find_file_problems(report.run, report.data)
    if reads_weights and not found:
        found = list(_find_weight_problems(report.run))
    warnings = report.warnings
    if reads_weights and report.run.model.checkpoint.kind in REMOTE:
        remote, unread = _check_remote_model(report.run, storage)
        found, warnings = [*found, *remote], (*warnings, *unread)
    return replace(report, problems=(*report.problems, *found), warnings=warnings)


def _check_remote_model(run: LoadedRun, storage: StorageOptions | None) -> tuple[list[Problem], list[str]]:
    """Problems of a model in a repository or bucket, and what kept it from being checked."""
    try:
        found = use_model_files(run.model.checkpoint, None, check_model_files, storage)
    except (StorageRefused, TrainerError) as error:
        return [run.make_problem(_CHECKPOINT, str(error))], []
    except (StorageError, ImportError) as error:
        return [], [f"model.LLM.checkpoint: not checked: {error}"]
    return [run.make_problem(_CHECKPOINT, text) for text in found.problems] if found else [], []


def _find_weight_problems(run: LoadedRun) -> Iterator[Problem]:
    """Find values of which a new run's server would make no digest; what else it lacks, it says itself."""
    if run.model.checkpoint.kind in REMOTE:
        return  # all of them would have to be downloaded
    path = _find_model(run)
    try:
        described = None if path is None else describe_model(path, run.model.max_seq_len)
        if path is not None and described is not None and (found := check_model(path, described.tensors).problems):
            raise ConfigError("; ".join(found))
        read_first_model(run.model, run.model_folder)
    except ConfigError as error:
        yield run.make_problem(_CHECKPOINT, str(error))


def find_file_problems(run: LoadedRun, data: LoadedData | None) -> list[Problem]:
    """Find what keeps any client from training the run's model on the run's tokens; blocks on the disk.

    Files that are not on this machine are not checked: they may be on the clients'.

    Args:
        run: the run.
        data: its data.toml, if its data comes from the server.
    """
    model = _check_model(run)
    problems = [run.make_problem(_CHECKPOINT, text) for text in model.problems]
    named = run.metadata.vocab_size
    actual = model.vocab_size
    if actual and named and actual != named:
        problems.append(run.make_problem(_VOCABULARY, f"is {named}, the model's is {actual}", f"vocab_size = {actual}"))
    return [*problems, *_find_data_problems(run, data, actual or named or None)]


def _check_model(run: LoadedRun) -> ModelCheck:
    """Check the first weights, or what they are to be made from; nothing where neither is here."""
    path = _find_model(run)
    return ModelCheck(()) if path is None else check_model(path)


def _find_model(run: LoadedRun) -> Path | None:
    if run.model.checkpoint.kind is not CheckpointKind.LOCAL:
        return None  # `_check_remote_model`
    folder = run.resolve(run.model.checkpoint.name)
    configs = (run.folder / name for name in MODEL_CONFIGS)
    is_here = folder.exists() or folder.is_symlink()  # of a link that leads nowhere, the check says so
    return folder if is_here else next((config for config in configs if config.is_file()), None)


def _find_other_data(run: LoadedRun, rows: "TokenRows | PreparedRows") -> Iterator[Problem]:
    from psyche.data.local import find_difference

    if different := find_difference(rows.files, run.config.data_root, run.data_manifest):
        yield run.make_problem(("config", "data_root"), different)


def _find_data_problems(run: LoadedRun, data: LoadedData | None, vocab_size: int | None) -> Iterator[Problem]:
    location = run.model.data_location
    if location.kind is DataLocationKind.SERVER and data is not None and has_token_files(run, data.folder):
        try:
            has_labels = run.model.data_type is DataType.FINETUNING
            rows = open_files(data, vocab_size, has_labels=has_labels)
            rows.check_vocabulary()
            yield from _find_other_data(run, rows)
        except DataError as error:
            yield Problem(data.path, data.lines.get(("dir",)), "dir", str(error))
    if has_own_rows(location, run.folder):
        try:
            path = find_rows(location, run.folder)
            length, has_labels = run.model.max_seq_len, run.model.data_type is DataType.FINETUNING
            rows = open_rows(path, length, has_labels=has_labels, vocab_size=vocab_size)
            rows.check_vocabulary()
            yield from _find_other_data(run, rows)
        except DataError as error:
            yield run.make_problem(_DATA, str(error))
    if location.kind is DataLocationKind.LOCAL and run.resolve(location.address).exists():
        try:
            files = find_local_data(run.resolve(location.address))
            rows = open_local(location, files, run.folder, run.model.max_seq_len, vocab_size)
            rows.check_vocabulary()
            yield from _find_other_data(run, rows)
        except ConfigProblems as error:
            yield from error.problems
        except DataError as error:
            yield run.make_problem(_DATA, str(error))
