"""Files of records (JSON Lines, Parquet): one field of each record is a document.

Records are read one after the other, so that a file may be larger than the memory. A record whose field is null or
empty is no document.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

from psyche.errors import DataError

JSON_LINES: Final = (".jsonl", ".ndjson")
PARQUET: Final = (".parquet",)
DEFAULT_FIELD: Final = "text"
MAX_LINE_BYTES: Final = 64 << 20  # of JSON Lines, in memory at once
BATCH_ROWS: Final = 256  # of Parquet, in memory at once
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Documents `first` to `first + count - 1` of a file of records, with their size as UTF-8 text."""

    path: Path
    field: str
    first: int
    count: int
    size_bytes: int


def has_records(path: Path) -> bool:
    return path.suffix.lower() in (*JSON_LINES, *PARQUET)


def read_documents(path: Path, field: str) -> Iterator[bytes]:
    """Read the documents of a file of records, as UTF-8 text."""
    read = _read_parquet if path.suffix.lower() in PARQUET else _read_json_lines
    return (document.encode("utf-8", errors="replace") for document in read(path, field) if document)


def measure_records(path: Path, field: str, progress: Progress | None = None) -> RecordSpan:
    """Read the whole file once: check every record, and count documents and bytes of text."""
    count = size_bytes = 0
    expected = path.stat().st_size if path.exists() else 0
    for document in read_documents(path, field):
        count, size_bytes = count + 1, size_bytes + len(document)
        if progress and not count % BATCH_ROWS:
            progress(size_bytes, max(size_bytes, expected))  # the file's size stands for its text's, which is not known
    return RecordSpan(path, field, 0, count, size_bytes)


def split_records(span: RecordSpan, size_bytes: int) -> tuple[RecordSpan, RecordSpan]:
    """Split a whole file's span after the document that holds byte `size_bytes` of its text."""
    count = done = 0
    for document in read_documents(span.path, span.field):
        if done >= size_bytes:
            break
        count, done = count + 1, done + len(document)
    before = RecordSpan(span.path, span.field, 0, count, done)
    return before, RecordSpan(span.path, span.field, count, span.count - count, span.size_bytes - done)


def read_span(span: RecordSpan) -> Iterator[bytes]:
    """Read the span's documents."""
    count = size_bytes = 0
    for number, document in enumerate(read_documents(span.path, span.field)):
        if number >= span.first + span.count:
            break
        if number >= span.first:
            count, size_bytes = count + 1, size_bytes + len(document)
            yield document
    if (count, size_bytes) != (span.count, span.size_bytes):
        raise DataError(f"{span.path}: changed while it was being read")


def _read_json_lines(path: Path, field: str) -> Iterator[str | None]:
    try:
        with path.open("rb") as stream:
            for where, values in read_objects(str(path), stream):
                if field not in values:
                    raise DataError(_describe_missing_field(where, field, list(values)))
                yield _check_text(where, field, values[field])
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def read_objects(name: str, stream: BinaryIO) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the objects of JSON Lines, each with the file and line that it stands in."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), start=1):
        where = f"{name}, line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise DataError(f"{where}: is longer than {MAX_LINE_BYTES >> 20} MiB; is this JSON Lines?")
        if text := line.removeprefix(_BYTE_ORDER_MARK).strip():
            yield where, _decode_object(where, text)


def _decode_object(where: str, line: bytes) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON: {error}; a file of JSON Lines has one object in each line") from error
    if not isinstance(record, dict):
        raise DataError(f"{where}: is not an object; a file of JSON Lines has one object in each line")
    return cast("dict[str, Any]", record)


def _check_text(where: str, field: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise DataError(
            f"{where}: the field {field!r} is not text but {type(value).__name__}; name another with --field"
        )
    return value


def _describe_missing_field(where: str, field: str, names: list[str]) -> str:
    known = ", ".join(map(repr, names[:12])) or "none"
    return f"{where}: has no field {field!r}; name one with --field (there are: {known})"


def _read_parquet(path: Path, field: str) -> Iterator[str | None]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if field not in schema.names:
                raise DataError(_describe_missing_field(str(path), field, schema.names))
            kind = schema.field(field).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise DataError(f"{path}: the column {field!r} is not text but {kind}; name another with --field")
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[field]):
                yield from batch.column(0).to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
