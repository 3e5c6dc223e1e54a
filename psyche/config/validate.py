"""`psyche server validate-config`: report the problems of a run's files, their places and remedies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from psyche.config.load import LoadedData, LoadedRun, load_data, load_run
from psyche.config.problems import ConfigProblems, Problem
from psyche.config.rules import find_unsupported
from psyche.core.state.state import CheckpointKind, DataLocationKind, DataType
from psyche.telemetry.text import format_number

_TOKEN_SUFFIXES: Final = (".bin", ".npy", ".ds")


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """The findings. `problems` make a run impossible, `unsupported` settings do so in this version only; what is
    `missing`, the server needs before it can start.
    """

    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]
    unsupported: tuple[str, ...]
    missing: tuple[str, ...]
    run: LoadedRun | None
    data: LoadedData | None

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0


def validate_config(
    state: Path, data_config: Path | None = None, data_manifest: str | None = None
) -> ConfigReport:  # fmt: skip
    """Check a run configuration, or its folder's, and the data server's; problems are reported, not raised.

    Without `data_config` the data.toml beside the run's file is checked, if the run gets its data from a data server.
    """
    problems: list[Problem] = []
    run: LoadedRun | None = None
    data: LoadedData | None = None
    try:
        run = load_run(state, data_manifest)
    except ConfigProblems as error:
        problems += error.problems
    try:
        data = load_data(data_config) if data_config is not None else _load_data_beside(run)
    except ConfigProblems as error:
        problems += error.problems
    problems += _find_disagreements(run, data)
    warnings = [*run.warnings, *_find_file_warnings(run, data)] if run else []
    missing = tuple(_find_missing(run, data)) if run and not problems else ()
    unsupported = find_unsupported(run.model, run.config) if run else []
    return ConfigReport(tuple(problems), tuple(warnings), tuple(unsupported), missing, run, data)


def _load_data_beside(run: LoadedRun | None) -> LoadedData | None:
    if run is None or run.model.data_location.kind is not DataLocationKind.SERVER:
        return None
    beside = run.folder / "data.toml"
    return load_data(beside) if beside.is_file() else None


def print_report(report: ConfigReport, write: Callable[[str], None]) -> int:
    """Write the report line by line; return the exit code."""
    for problem in report.problems:
        write(f"error: {problem}")
    for text in (*report.unsupported, *report.missing):
        write(f"not yet (`server run` refuses it): {text}")
    for text in report.warnings:
        write(f"warning: {text}")
    if report.problems:
        count = len(report.problems)
        write(f"{count} problem{'s' if count > 1 else ''}; nothing can run with this")
    elif report.run:
        count = len(report.warnings)
        verdict = f"fine, but see the {format_number(count, 'warning')}" if count else "fine"
        verdict = "valid, but its data is not there yet" if report.missing else verdict
        verdict = "valid, but this version cannot run it" if report.unsupported else verdict
        write(f"{report.run.path}: {verdict}, run {report.run.run_id!r}")
    return report.exit_code


def _find_disagreements(run: LoadedRun | None, data: LoadedData | None) -> list[Problem]:
    if run is None or data is None or data.sequence_length == run.model.max_seq_len:
        return []
    what = f"is {data.sequence_length}, model.LLM.max_seq_len of {run.path.name} is {run.model.max_seq_len}"
    line = data.lines.get(("seq_len",))
    return [Problem(data.path, line, "seq_len", what, f"seq_len = {run.model.max_seq_len}")]


def _find_missing(run: LoadedRun, data: LoadedData | None) -> Iterator[str]:
    if run.model.data_location.kind is not DataLocationKind.SERVER:
        return
    if data is None:
        yield (
            f"model.LLM.data_location is 'Server': the server needs a data.toml, in {run.folder} or named with "
            "--data-config"
        )
    elif not has_token_files(run, data.folder):
        yield (
            f"{data.path}: no rows with labels (.parquet) in {data.folder} yet"
            if run.model.data_type is DataType.FINETUNING
            else f"{data.path}: no token file in {data.folder} yet; `psyche data tokenize TEXT --output "
            f"{quote(str(data.folder / 'train.bin'))}` makes one"
        )


def _find_file_warnings(run: LoadedRun, data: LoadedData | None) -> list[str]:
    found: list[str] = []
    location, checkpoint = run.model.data_location, run.model.checkpoint
    if location.kind is not DataLocationKind.SERVER and data is not None:
        found.append("--data-config is not used: model.LLM.data_location is not 'Server'")
    if checkpoint.kind is CheckpointKind.LOCAL and not (folder := run.resolve(checkpoint.name)).exists():
        found.append(
            f"model.LLM.checkpoint: no folder {folder} on this machine yet; with it here the "
            "server puts its digest on record, and clients without the folder fetch it from others; "
            f"`psyche model init --config {_find_model_file(run)} --output {quote(str(folder))}` makes one"
        )
    return found


def _find_model_file(run: LoadedRun) -> str:
    """The file beside the run's that describes its model, as `psyche init` writes it, or a word for one."""
    named = [run.folder / name for name in ("model.toml", "model.json")]
    return next((quote(str(path)) for path in named if path.is_file()), "FILE")


def has_token_files(run: LoadedRun, folder: Path) -> bool:
    if run.model.data_type is DataType.FINETUNING:
        return any(True for _ in folder.rglob("*.parquet"))
    return folder.is_dir() and any(path.suffix in _TOKEN_SUFFIXES for path in folder.iterdir())
