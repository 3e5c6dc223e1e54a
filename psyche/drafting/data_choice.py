"""The data of a new run: text that is still to be tokenized, or files of token ids."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.config.load import load_data
from psyche.data.corpus import find_library_sources
from psyche.data.files import SUFFIXES, find_files, find_token_size, open_token_file
from psyche.data.records import DEFAULT_FIELD
from psyche.data.texts import find_texts
from psyche.durable import resolve_path
from psyche.errors import ConfigError

LIBRARY: Final = "stdlib"  # the value of --data for the source code of Python's standard library


@dataclass(frozen=True, slots=True)
class DataChoice:
    """Training data: `texts`, found at `named`, or `tokens` ids of `token_size_bytes` each in folder `tokens_at`."""

    texts: tuple[Path, ...] = ()
    field: str = DEFAULT_FIELD  # of the texts that are records
    named: Path = Path()
    tokens_at: Path | None = None
    token_size_bytes: int = 0
    tokens: int = 0

    @property
    def is_library(self) -> bool:
        return self.named == Path(sysconfig.get_path("stdlib"))


def choose_data(named: str, vocab_size: int, field: str = DEFAULT_FIELD) -> DataChoice:
    """The data that --data names: text, files of token ids, or the standard library's source code."""
    if named == LIBRARY:
        return DataChoice(texts=tuple(find_library_sources()), named=Path(sysconfig.get_path("stdlib")))
    path = resolve_path(Path(), named)
    if not path.is_file() and not path.is_dir():
        raise ConfigError(f"--data {named}: there is no such file or folder; {LIBRARY} is Python's own source code")
    size_bytes = 0
    if path.is_dir() and (path / "data.toml").is_file():
        described = load_data(path)
        path, size_bytes = described.folder, described.token_size_bytes
    if not _has_tokens(path):
        return DataChoice(texts=tuple(find_texts([path])), field=field, named=path)
    size_bytes = size_bytes or find_token_size(path, vocab_size)
    path = path if path.is_dir() else _get_folder(path)
    files = [open_token_file(file, size_bytes, vocab_size) for file in find_files([path])]
    return DataChoice(tokens_at=path, token_size_bytes=size_bytes, tokens=sum(file.tokens for file in files))


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
