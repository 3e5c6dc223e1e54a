"""Text files read as one long text: find them, split off a held-out part, read them in pieces.

Files of records (JSON Lines, Parquet) may be among them: see `records`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.data.records import (
    DEFAULT_FIELD,
    Progress,
    RecordSpan,
    has_records,
    measure_records,
    read_span,
    split_records,
)
from psyche.errors import DataError

PIECE_BYTES: Final = 1 << 20  # text in memory at once
MAX_LINE_BYTES: Final = 1 << 16  # how far before a piece's end to search for the end of a line
_FIRST_CONTINUED: Final = 0x80  # a smaller byte is a whole UTF-8 character
_SECRET_SUFFIXES: Final = (".key", ".pem")
_PROBED_BYTES: Final = 8_192  # text has no zero byte; a binary file nearly always has one among its first bytes
_CHARACTER_BYTES: Final = 4  # the longest UTF-8 character
_MAGIC: Final = {
    b"\x1f\x8b": "compressed by gzip: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it first",
    b"BZh": "compressed by bzip2: unpack it first",
    b"\xfd7zXZ": "compressed by xz: unpack it first",
    b"PK\x03\x04": "a ZIP archive, or a document of an office program: extract its text first",
    b"%PDF-": "a PDF: extract its text first",
    b"PAR1": "Parquet: give it the ending .parquet",
}


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of one text file, in bytes; `ends_document` says that it reaches the file's end."""

    path: Path
    offset: int
    size_bytes: int
    ends_document: bool

    @property
    def count(self) -> int:
        """How many documents end in the span."""
        return int(self.ends_document)


Span = TextSpan | RecordSpan


def find_texts(inputs: Sequence[Path], suffixes: Sequence[str] = ()) -> list[Path]:
    """Find the text files that `inputs` name; folders are searched recursively, sorted by path.

    In folders, `suffixes` takes only files with these; empty: all files that look like text, and files of records.
    Hidden files, keys and other binary files are left out, because all clients will see the data.
    """
    found: list[Path] = []
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        if path.is_file():
            _check_text(path)
            found.append(path)
        else:
            found += sorted(_search(path, suffixes), key=lambda p: p.as_posix())
    if not found:
        names = ", ".join(map(str, inputs))
        raise DataError(f"{names}: no text file" + (f" that ends with {' or '.join(suffixes)}" if suffixes else ""))
    return found


def _search(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if is_hidden or not path.is_file():
            continue
        if suffixes:
            if path.name.endswith(tuple(suffixes)):
                _check_text(path)
                yield path
        elif path.suffix not in _SECRET_SUFFIXES and (has_records(path) or describe_binary(path) is None):
            yield path


def _check_text(path: Path) -> None:
    if not has_records(path) and (binary := describe_binary(path)):
        raise DataError(f"{path}: is no text but {binary}")


def describe_binary(path: Path) -> str | None:
    """What a binary file is, and what to do with it; None for text."""
    try:
        with path.open("rb") as file:
            start = file.read(_PROBED_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    known = next((what for magic, what in _MAGIC.items() if start.startswith(magic)), None)
    return known or ("binary (it has zero bytes); text must be UTF-8" if b"\0" in start else None)


def split_texts(
    texts: Sequence[Path], held_out_bytes: int, field: str = DEFAULT_FIELD, measuring: Progress | None = None
) -> tuple[list[Span], list[Span]]:
    """Split the text into a first part and the last `held_out_bytes`.

    No UTF-8 character is split, and no record: the part held out is smaller by at most one record. Files of records
    are read once to measure them; `measuring` is called with (bytes done, about how many there are) of each.
    """
    whole = [_measure(path, field, measuring) for path in texts]
    size_bytes = sum(span.size_bytes for span in whole)
    if not size_bytes:
        raise DataError(f"{', '.join(str(path) for path in texts[:3])}: there is no text in there; name other files")
    cut = size_bytes - held_out_bytes
    if cut <= 0:
        raise DataError(f"holding out {held_out_bytes} of {size_bytes} bytes leaves nothing to train on")
    before: list[Span] = []
    after: list[Span] = []
    position = 0
    for span in whole:
        if 0 < (inside := cut - position) < span.size_bytes:
            first, second = _split_text(span, inside) if isinstance(span, TextSpan) else split_records(span, inside)
            before.append(first)
            if second.size_bytes:
                after.append(second)
        elif span.size_bytes:
            (before if inside > 0 else after).append(span)
        position += span.size_bytes
    return before, after


def _measure(path: Path, field: str, measuring: Progress | None) -> Span:
    if has_records(path):
        return measure_records(path, field, measuring)
    return TextSpan(path, 0, _get_size(path), ends_document=True)


def _split_text(span: TextSpan, size_bytes: int) -> tuple[TextSpan, TextSpan]:
    inside = _find_character(span.path, size_bytes)
    first = TextSpan(span.path, 0, inside, ends_document=False)
    return first, TextSpan(span.path, inside, span.size_bytes - inside, ends_document=True)


def read_parts(span: Span) -> Iterator[tuple[bytes, bool]]:
    """Read the span in parts of documents, each with whether a document ends there."""
    if isinstance(span, RecordSpan):
        yield from ((document, True) for document in read_span(span))
        return
    yield from ((piece, False) for piece in read_pieces(span))
    if span.ends_document:
        yield b"", True


def read_pieces(span: TextSpan) -> Iterator[bytes]:
    """Read the span in pieces of at most 1 MiB that end at line ends, unless a line is longer than 64 KiB."""
    left = span.size_bytes
    try:
        with span.path.open("rb") as stream:
            stream.seek(span.offset)
            while left:
                piece = stream.read(min(PIECE_BYTES, left))
                if not piece:
                    raise DataError(f"{span.path}: became shorter while it was being read")
                if len(piece) < left:
                    piece = piece[: _find_break(piece)]
                    stream.seek(span.offset + span.size_bytes - left + len(piece))
                left -= len(piece)
                yield piece
    except OSError as error:
        raise DataError(f"{span.path}: cannot be read: {error.strerror}") from error


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _find_character(path: Path, offset: int) -> int:
    first = max(0, offset - _CHARACTER_BYTES + 1)
    with path.open("rb") as stream:
        stream.seek(first)
        nearby = stream.read(offset - first + 1)
    return first + _find_start(nearby, len(nearby) - 1)


def _find_start(text: bytes, place: int) -> int:
    start = place
    while start > 0 and place - start < _CHARACTER_BYTES - 1 and text[start] & 0xC0 == 0x80:
        start -= 1
    return start


def _find_break(piece: bytes) -> int:
    """The length at which to end a piece (not the last one): after a line, or before a character."""
    line = piece.rfind(b"\n", max(0, len(piece) - MAX_LINE_BYTES))
    if line >= 0:
        return line + 1
    if piece[-1] < _FIRST_CONTINUED:
        return len(piece)
    return max(1, _find_start(piece, len(piece) - 1))
