"""The data of a new run: text that is still to be tokenized, or files of token ids."""

import secrets
import sysconfig
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import trio

from psyche.config.load import load_data
from psyche.config.places import DATA, parse_data
from psyche.core.state.enums import DataLocationKind, TokenSize
from psyche.core.state.settings import DataLocation
from psyche.data.corpus import find_library_sources
from psyche.data.files import SUFFIXES, compute_token_size, find_files, find_token_size, open_token_file
from psyche.data.order import RemoteSize
from psyche.data.prepared.remote import find_remote_form
from psyche.data.prepared.rows import find_folder_form, has_rows, open_rows
from psyche.data.provider import open_remote_rows
from psyche.data.records import DEFAULT_FIELD
from psyche.data.texts import find_texts
from psyche.drafting.model_choice import ModelChoice
from psyche.durable import resolve_path
from psyche.errors import ConfigError, PsycheError
from psyche.storage.port import CACHE_GB, StorageOptions, read_environment

LIBRARY: Final = "stdlib"  # the value of --data for the source code of Python's standard library


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Training data: `texts`, found at `named`; `tokens` ids of `token_size_bytes` each in folder `tokens_at`; or those
    at the `location`, which each member reads itself (prepared rows on this machine are at `tokens_at`).
    """

    texts: tuple[Path, ...] = ()
    field: str = DEFAULT_FIELD  # of the texts that are records
    named: Path = Path()
    tokens_at: Path | None = None
    token_size_bytes: int = 0
    tokens: int = 0
    location: DataLocation | None = None
    about: str = ""  # of the location
    has_labels: bool = False
    sequence_tokens: int | None = None  # of the location's rows

    @property
    def is_library(self) -> bool:
        return self.named == Path(sysconfig.get_path("stdlib"))


def choose_data(
    named: str, model: ModelChoice, vocab_size: int, field: str = DEFAULT_FIELD, options: StorageOptions | None = None
) -> DataChoice:
    """The data that --data names: text, token ids, prepared rows, the standard library's source code, or an address."""
    location = parse_data(named, compute_token_size(model.vocab_size))
    if location is not None:
        return trio.run(_examine, named, location, model, options or read_environment())
    if named == LIBRARY:
        return DataChoice(texts=tuple(find_library_sources()), named=Path(sysconfig.get_path("stdlib")))
    path = resolve_path(Path(), named)
    if not path.is_file() and not path.is_dir():
        raise ConfigError(
            f"--data {named}: there is no such file or folder; {LIBRARY} is Python's own source code, "
            f"and data elsewhere are {DATA}"
        )
    size_bytes = 0
    if path.is_dir() and (path / "data.toml").is_file():
        described = load_data(path)
        path, size_bytes = described.folder, described.token_size_bytes
    if not _has_tokens(path):
        if has_rows(path):
            return _examine_rows(named, path, model)
        return DataChoice(texts=tuple(find_texts([path])), field=field, named=path)
    size_bytes = size_bytes or find_token_size(path, vocab_size)
    path = path if path.is_dir() else _get_folder(path)
    files = [open_token_file(file, size_bytes, vocab_size) for file in find_files([path])]
    return DataChoice(tokens_at=path, token_size_bytes=size_bytes, tokens=sum(file.tokens for file in files))


async def _examine(named: str, location: DataLocation, model: ModelChoice, options: StorageOptions) -> DataChoice:
    """Ask the place how much there is, and read the first row."""
    length, has_labels = model.sequence_tokens, False
    try:
        if location.kind is DataLocationKind.PREPROCESSED:
            form = await find_remote_form(location.address, options)
            length, has_labels = form.length, form.has_labels
            _check_length(length, model)
        rows = open_remote_rows(
            location, options, sequence_length=length, vocab_size=model.vocab_size, has_labels=has_labels
        )
        async with aclosing(rows):
            size = await rows.measure()
            ids = np.frombuffer(await rows.get(0, 0), "<u4")
    except PsycheError as error:
        raise ConfigError(f"--data {named}: {error}") from error
    if location.kind is DataLocationKind.HTTP:
        if location.token_size is TokenSize.TWO_BYTES and not ids[1::2].any():  # halves of ids of four bytes
            return await _examine(named, replace(location, token_size=TokenSize.FOUR_BYTES), model, options)
        is_kept = size.size_bytes <= CACHE_GB * 1e9
        location = replace(location, shuffle_seed=secrets.token_bytes(32) if is_kept else None)
    return DataChoice(
        tokens=size.samples * length, location=replace(location, address=size.pinned), about=size.describe(),
        has_labels=has_labels, sequence_tokens=length,
    )  # fmt: skip


def _examine_rows(named: str, path: Path, model: ModelChoice) -> DataChoice:
    """Prepared rows on this machine, of which the first are read."""
    try:
        form = find_folder_form(path)
        _check_length(form.length, model)
        rows = open_rows(path, form.length, has_labels=form.has_labels, vocab_size=model.vocab_size)
        rows.check_vocabulary()
    except PsycheError as error:
        raise ConfigError(f"--data {named}: {error}") from error
    size_bytes = sum(file.size_bytes for file in rows.files)
    return DataChoice(
        tokens_at=path, tokens=rows.num_sequences * form.length, has_labels=form.has_labels,
        location=DataLocation(DataLocationKind.PREPROCESSED, str(path)), sequence_tokens=form.length,
        about=RemoteSize(str(path), rows.num_sequences, size_bytes).describe(),
    )  # fmt: skip


def _check_length(length: int, model: ModelChoice) -> None:
    if length > model.positions:
        raise ConfigError(f"rows of {length} tokens are too long for a model of {model.positions} positions")


def _has_tokens(path: Path) -> bool:
    if path.is_file():
        return path.suffix in SUFFIXES
    return any(file.suffix in SUFFIXES for file in path.iterdir())


def _get_folder(file: Path) -> Path:
    """The folder of the only token file in it: a data.toml names folders."""
    others = [other.name for other in find_files([file.parent]) if other != file]
    if others:
        raise ConfigError(
            f"--data {file}: its folder has other files of tokens ({', '.join(others)}), which would be trained on "
            "too; move it to a folder of its own, or name the folder to train on all of them"
        )
    return file.parent
