"""Writes a new run's folder: whole, or not at all."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from psyche.config.load import RUN_FILE_NAMES
from psyche.core.encoding.manifest import FILE_NAMES
from psyche.data.bytes_tokenizer import TOKENIZER_FILES, get_tokenizer_files
from psyche.data.files import SUFFIXES, compute_token_size
from psyche.data.tokenize import TextTokenizer, tokenize
from psyche.drafting.data_choice import DataChoice
from psyche.drafting.files import (
    DATA_FILE,
    DATA_FOLDER,
    MODEL_FILE,
    MODEL_FOLDER,
    RUN_FILE,
    write_data_file,
    write_model_file,
    write_run_file,
)
from psyche.drafting.model_choice import CONFIG_NAME, WEIGHTS_SUFFIX, ModelChoice
from psyche.drafting.plan import Answers, compute_run_plan
from psyche.durable import naming
from psyche.errors import ConfigError
from psyche.server.preflight import validate_run

TOKENS_NAME: Final = "train.bin"
INDEX_SUFFIX: Final = ".safetensors.index.json"
Progress = Callable[[int, int], None]  # bytes done, total bytes
MakeWeights = Callable[[Path, Path], object]  # from the file of a config to the model's new folder


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything that is to be written, decided."""

    folder: Path
    answers: Answers
    model: ModelChoice
    data: DataChoice
    tokenizer: TextTokenizer  # for texts that are to be tokenized
    tokenizer_path: Path | None  # its files, which the model's folder gets; None: the byte tokenizer's
    is_prepared: bool  # tokens and first weights are made at once
    is_tokenizer_named: bool

    @property
    def brings_tokenizer(self) -> bool:
        # Whether the tokenizer is not the one that lies in the model's folder.
        own, path = self.model.folder, self.tokenizer_path
        if own is None or not (self.data.texts or self.is_tokenizer_named):
            return False
        return path is None or own.resolve() not in (path.resolve(), path.resolve().parent)


@dataclass(frozen=True, slots=True)
class Built:
    """What was written: the data's tokens (0: not counted yet), and warnings about unusual settings."""

    tokens: int
    warnings: tuple[str, ...]


def check_folder(draft: Draft, *, force: bool) -> None:
    """Refuse to overwrite anything without `force`, and never what is not part of a run."""
    folder = draft.folder
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; name a folder")
    for name in RUN_FILE_NAMES:
        if name != RUN_FILE and (folder / name).exists():
            raise ConfigError(f"{folder / name}: is there, and would be read besides {RUN_FILE}; name another folder")
    for path in _find_targets(draft):
        if path.is_dir() and not (path / CONFIG_NAME).is_file() and any(path.iterdir()):
            raise ConfigError(f"{path}: is no model's folder; move it away, or name another folder")
        if path.exists() and not force:
            raise ConfigError(f"{path}: is there already; name another folder, or replace it with --force")
        _check_sources(draft, path)
    if draft.data.texts:
        _check_data_folder(folder / DATA_FOLDER)


def _check_sources(draft: Draft, target: Path) -> None:
    """Refuse to replace a folder in which something lies that the new run is to use."""
    sources = [draft.model.folder, draft.data.tokens_at]
    if not draft.is_prepared:  # otherwise they are read before anything is replaced
        sources += [draft.tokenizer_path, draft.data.named if draft.data.texts else None]
    for source in sources:
        if source is not None and source.resolve().is_relative_to(target.resolve()):
            raise ConfigError(f"{source}: lies in {target}, which --force replaces; move it away")


def _check_data_folder(folder: Path) -> None:
    """Refuse other files of tokens there: they would be trained on too."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in SUFFIXES and path.name != TOKENS_NAME:
            raise ConfigError(f"{path}: would be trained on too; move it away, or name its folder with --data")


def _find_targets(draft: Draft) -> list[Path]:
    folder = draft.folder
    targets = [folder / RUN_FILE, *([folder / DATA_FILE] if draft.data.location is None else [])]
    if draft.model.size is not None:
        targets.append(folder / MODEL_FILE)
    if not _is_in_place(draft) and draft.model.source is None:
        targets.append(folder / MODEL_FOLDER)
    elif draft.brings_tokenizer:
        targets += [folder / MODEL_FOLDER / name for name in sorted(TOKENIZER_FILES)]
    if draft.data.texts:
        targets.append(folder / DATA_FOLDER / TOKENS_NAME)
    return targets


def _is_in_place(draft: Draft) -> bool:
    source = draft.model.folder
    return source is not None and source.resolve() == (draft.folder / MODEL_FOLDER).resolve()


def build(draft: Draft, make_weights: MakeWeights, progress: Progress) -> Built:
    """Write the files, tokens and weights of a run, and check them with the validator; `check_folder` has passed.

    All of it is made in a temporary folder and moved when it is complete.
    """
    folder = draft.folder
    parent = folder if folder.is_dir() else folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with naming(folder), tempfile.TemporaryDirectory(prefix=".psyche-init-", dir=parent) as name:
        scratch = Path(name) / "run"
        scratch.mkdir()
        tokens = _write_all(draft, scratch, make_weights, progress)
        warnings = _check(draft, scratch)
        if draft.brings_tokenizer:
            _write_tokenizer(draft, scratch / MODEL_FOLDER, Path(name))
        folder.mkdir(parents=True, exist_ok=True)
        _move(draft, scratch, Path(name))
    return Built(tokens, warnings)


def _write_all(draft: Draft, scratch: Path, make_weights: MakeWeights, progress: Progress) -> int:
    model, data = draft.model, draft.data
    if data.location is not None and data.tokens_at is not None:
        data = replace(data, location=replace(data.location, address=_get_data_folder(draft)))
    plan = compute_run_plan(draft.answers, model)
    (scratch / RUN_FILE).write_text(write_run_file(draft.answers, model, data, plan), encoding="utf-8")
    tokens, size_bytes = data.tokens, data.token_size_bytes
    if data.texts:
        (scratch / DATA_FOLDER).mkdir()
        size_bytes = compute_token_size(draft.tokenizer.vocab_size)
    if data.texts and draft.is_prepared:
        output = scratch / DATA_FOLDER / TOKENS_NAME
        tokens = tokenize(
            data.texts, output, tokenizer=draft.tokenizer, field=data.field, progress=progress
        ).train.tokens
    if data.location is None:
        text = write_data_file(
            _get_data_folder(draft), size_bytes, model.sequence_tokens, secrets.token_hex(32),
            for_members=draft.answers.backend.data_server is None,
        )  # fmt: skip
        (scratch / DATA_FILE).write_text(text, encoding="utf-8")
    if model.size is not None:
        (scratch / MODEL_FILE).write_text(write_model_file(model, draft.tokenizer_path), encoding="utf-8")
    if model.folder is not None and not _is_in_place(draft):
        copy_model(model.folder, scratch / MODEL_FOLDER)
    elif model.size is not None and draft.is_prepared:
        make_weights(scratch / MODEL_FILE, scratch / MODEL_FOLDER)
    return tokens


def _write_tokenizer(draft: Draft, folder: Path, scratch: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)
    for path in get_tokenizer_files(draft.tokenizer_path, scratch / "tokenizer"):
        shutil.copyfile(path, folder / path.name)


def _get_data_folder(draft: Draft) -> str:
    """The folder as data.toml names it: relative where it lies in the run's folder."""
    at = draft.data.tokens_at
    if at is None:
        return DATA_FOLDER
    root = draft.folder.resolve()
    return str(at.relative_to(root)) if at.is_relative_to(root) else str(at)


def copy_model(source: Path, target: Path) -> None:
    """Copy a model's folder: its weights, and the small files that a run keeps (S9)."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.name in FILE_NAMES or path.name.endswith((WEIGHTS_SUFFIX, INDEX_SUFFIX)):
            shutil.copyfile(path, target / path.name)


def _check(draft: Draft, scratch: Path) -> tuple[str, ...]:
    with _linking(_find_links(draft, scratch)):
        report = validate_run(scratch)
    is_to_come = bool(draft.data.texts) and not draft.is_prepared
    found = [one for one in report.problems if not (is_to_come and one.key == "model.LLM.data_location")]
    problems = [*(one.what for one in found), *report.unsupported]
    if problems:
        text = "\n".join(problems)
        if draft.model.folder is not None:
            text = text.replace(str(scratch / MODEL_FOLDER), str(draft.model.folder))
        raise ConfigError(text.replace(str(scratch), str(draft.folder)))
    return report.run.warnings if report.run else ()


def _find_links(draft: Draft, scratch: Path) -> dict[Path, Path]:
    """Links from the temporary folder to what lies in the run's folder already, so that it is checked too."""
    links: dict[Path, Path] = {}
    if draft.model.folder is not None and _is_in_place(draft):
        links[scratch / MODEL_FOLDER] = draft.model.folder.resolve()
    at, root = draft.data.tokens_at, draft.folder.resolve()
    if at is not None and at != root and at.is_relative_to(root):
        links[scratch / at.relative_to(root)] = at
    return links


@contextmanager
def _linking(links: dict[Path, Path]) -> Iterator[None]:
    """Have these links while the block runs; nothing of them is left."""
    parents = dict.fromkeys(parent for link in links for parent in link.parents if not parent.exists())  # deepest first
    for link, target in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    try:
        yield
    finally:
        for link in links:
            link.unlink()
        for parent in parents:
            parent.rmdir()


def _move(draft: Draft, scratch: Path, bin_: Path) -> None:
    """Move everything to its place; what it replaces goes to `bin_`, which is removed.

    What is still to be made replaces what was there too: nobody is to train the former run's model or tokens.
    """
    for number, target in enumerate(_find_targets(draft)):
        if os.path.lexists(target):
            target.rename(bin_ / str(number))
    for path in sorted(scratch.iterdir()):
        if path.name == DATA_FOLDER or (path.name == MODEL_FOLDER and _is_in_place(draft)):
            (draft.folder / path.name).mkdir(exist_ok=True)
            for file in sorted(path.iterdir()):
                file.replace(draft.folder / path.name / file.name)
        else:
            path.rename(draft.folder / path.name)
