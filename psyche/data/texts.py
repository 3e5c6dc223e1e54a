"""Text files read as one long text: find them, split off a held-out part, read them in pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psyche.errors import DataError

PIECE_BYTES: Final = 1 << 20  # text in memory at once
MAX_LINE_BYTES: Final = 1 << 16  # how far before a piece's end to search for the end of a line
_FIRST_CONTINUED: Final = 0x80  # a smaller byte is a whole UTF-8 character
_SECRET_SUFFIXES: Final = (".key", ".pem")
_PROBED_BYTES: Final = 8_192  # text has no zero byte; a binary file nearly always has one among its first bytes
_CHARACTER_BYTES: Final = 4  # the longest UTF-8 character


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of one text file, in bytes; `ends_document` says that it reaches the file's end."""

    path: Path
    offset: int
    size_bytes: int
    ends_document: bool


def find_texts(inputs: Sequence[Path], suffixes: Sequence[str] = ()) -> list[Path]:
    """Find the text files that `inputs` name; folders are searched recursively, sorted by path.

    Args:
        inputs: files and folders.
        suffixes: in folders, take only files with these suffixes (".py", ".txt"); empty: all files that look like
            text. Hidden files, keys and binary files are left out, because all clients will see the data.

    Raises:
        DataError: an input does not exist, or no file is found.
    """
    found: list[Path] = []
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        found += [path] if path.is_file() else sorted(_search(path, suffixes), key=lambda p: p.as_posix())
    if not found:
        names = ", ".join(map(str, inputs))
        raise DataError(f"{names}: no text file" + (f" that ends with {' or '.join(suffixes)}" if suffixes else ""))
    return found


def _search(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    for path in folder.rglob("*"):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if is_hidden or not path.is_file():
            continue
        if path.name.endswith(tuple(suffixes)) if suffixes else _is_text(path):
            yield path


def _is_text(path: Path) -> bool:
    if path.suffix in _SECRET_SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return b"\0" not in file.read(_PROBED_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def split_texts(texts: Sequence[Path], held_out_bytes: int) -> tuple[list[TextSpan], list[TextSpan]]:
    """Split the text into a first part and the last `held_out_bytes`; no UTF-8 character is split.

    Raises:
        DataError: a file cannot be read, or the first part is empty.
    """
    sizes = [_get_size(path) for path in texts]
    cut = sum(sizes) - held_out_bytes
    if cut <= 0:
        raise DataError(f"holding out {held_out_bytes} of {sum(sizes)} bytes leaves nothing to train on")
    before: list[TextSpan] = []
    after: list[TextSpan] = []
    position = 0
    for path, size in zip(texts, sizes, strict=True):
        if 0 < (inside := cut - position) < size:
            inside = _find_character(path, inside)
            before.append(TextSpan(path, 0, inside, ends_document=False))
            after.append(TextSpan(path, inside, size - inside, ends_document=True))
        elif size:
            (before if inside > 0 else after).append(TextSpan(path, 0, size, ends_document=True))
        position += size
    return before, after


def read_pieces(span: TextSpan) -> Iterator[bytes]:
    """Read the span in pieces of at most 1 MiB that end at line ends, unless a line is longer than 64 KiB.

    Raises:
        DataError: the file cannot be read, or has become shorter.
    """
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
    """The offset at which the UTF-8 character around `offset` starts."""
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
