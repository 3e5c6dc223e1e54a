"""Records of a data set to prepare: JSON Lines and Parquet, here or on the Hub, one field of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from psyche.data.prepared.remote import open_stored
from psyche.data.prepared.rows import SPLIT, Opener, choose_files, open_parquet
from psyche.data.records import BATCH_ROWS, JSON_LINES, PARQUET, read_objects
from psyche.durable import open_file
from psyche.errors import DataError
from psyche.storage.port import Storage

BUFFER_BYTES: Final = 1 << 20  # of a file on the Hub, asked for at once
OPTIONS: Final = "see --subset and --split, or name the Hub's own conversion: owner/name@refs/convert/parquet"
_SUFFIXES: Final = (*JSON_LINES, *PARQUET)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of records."""

    name: str
    size_bytes: int
    opener: Opener


@dataclass(frozen=True, slots=True)
class Record:
    where: str  # file and line or row, for messages
    field: str
    value: Any


def find_sources(path: Path, subset: str | None, split: str, remedy: str = OPTIONS) -> list[Source]:
    """Find the files of a folder, as in a data set of the Hub; or take a single file.

    `remedy` is what the error of a missing file says last.

    Raises:
        DataError: there is none.
    """
    if path.is_file() and path.suffix.lower() not in _SUFFIXES:
        raise DataError(f"{path}: must end with {', '.join(_SUFFIXES)}")
    files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
    chosen = (
        [path] if path.is_file() else [files[name] for name in _choose(str(path), list(files), subset, split, remedy)]
    )
    return [Source(str(file), file.stat().st_size, partial(open_file, file)) for file in chosen]


async def list_sources(storage: Storage, subset: str | None, split: str, remedy: str = OPTIONS) -> list[Source]:
    """List the files of a data set of the Hub; a thread of trio's may read them.

    Raises:
        DataError: there is none. StorageError: the data set cannot be read.
    """
    listed = {file.name: file for file in await storage.list_files()}
    return [
        Source(f"{storage.address}/{name}", file.size_bytes, partial(open_stored, storage, file, BUFFER_BYTES))
        for name in _choose(storage.address, list(listed), subset, split, remedy)
        for file in (listed[name],)
    ]


def _choose(place: str, names: Sequence[str], subset: str | None, split: str, remedy: str) -> list[str]:
    chosen = choose_files(names, split, subset, _SUFFIXES)
    if not chosen:
        wanted = f" of the subset {subset!r}" if subset else ""
        wanted += f" with a name that begins with {split!r}" if split != SPLIT else ""
        known = ", ".join(sorted(names)[:8])
        raise DataError(
            f"{place}: no file{wanted} ends with {', '.join(_SUFFIXES)} (there are: {known or 'none'}); {remedy}"
        )
    return chosen


def read_records(source: Source, fields: Sequence[str], progress: Callable[[int], None]) -> Iterator[Record]:
    """Read the first of `fields` that a record has; `progress` is called with the bytes that are done.

    Raises:
        DataError: the file cannot be read, or a record has no such field.
    """
    read = _read_parquet if source.name.lower().endswith(PARQUET) else _read_lines
    return read(source, fields, progress)


def _read_lines(source: Source, fields: Sequence[str], progress: Callable[[int], None]) -> Iterator[Record]:
    try:
        with source.opener() as stream:
            for where, values in read_objects(source.name, stream):
                field = _choose_field(where, fields, list(values))
                yield Record(where, field, values[field])
                progress(stream.tell())
    except OSError as error:
        raise DataError(f"{source.name}: cannot be read: {error.strerror or error}") from error


def _read_parquet(source: Source, fields: Sequence[str], progress: Callable[[int], None]) -> Iterator[Record]:
    with open_parquet(source.name, source.opener) as file:
        field = _choose_field(source.name, fields, file.schema_arrow.names)
        number, rows = 0, max(1, file.metadata.num_rows)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[field], use_threads=False):
            for value in batch.column(0).to_pylist():
                yield Record(f"{source.name}, row {number}", field, value)
                number += 1
            progress(source.size_bytes * number // rows)


def _choose_field(where: str, fields: Sequence[str], names: Sequence[str]) -> str:
    for field in fields:
        if field in names:
            return field
    wanted = " or ".join(map(repr, fields))
    known = ", ".join(map(repr, names[:12])) or "none"
    raise DataError(f"{where}: has no field {wanted} (there are: {known}); give one of them that name")
