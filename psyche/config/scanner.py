"""The position of each key in a TOML document; `tomllib` gives values but no positions.

The scanner reads only documents that `tomllib` has accepted, so it does not check the grammar again. If it
misunderstands something, a line number is lost or wrong, never a value.
"""

import re
import tomllib
from collections.abc import Iterator

KeyPath = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INLINE_SPACE = re.compile(r"[ \t]*")


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) of every key, table header and array item of a valid TOML document."""
    lines: dict[KeyPath, int] = {}
    for path, position in _Scanner(text).scan():
        lines.setdefault(path, text.count("\n", 0, position) + 1)
    return lines


def find_value_spans(text: str) -> dict[KeyPath, tuple[int, int]]:
    """The start and end (exclusive), in characters, of the value of every key of a valid TOML document."""
    scanner = _Scanner(text)
    for _ in scanner.scan():
        pass
    return scanner.spans


class _Scanner:
    """A cursor over the text; the `scan_*` methods yield (path, position) and move it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.spans: dict[KeyPath, tuple[int, int]] = {}
        self._items: dict[KeyPath, int] = {}  # items of arrays of tables seen so far

    def scan(self) -> Iterator[tuple[KeyPath, int]]:
        table: KeyPath = ()
        while self._skip(_SPACE) < len(self._text):
            if self._peek("["):
                start = self._at
                table = self._read_header()
                yield from _prefixes(table, start)
            else:
                yield from self._scan_pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def _read_header(self) -> KeyPath:
        is_array = self._peek("[[")
        self._at += 2 if is_array else 1
        path = self._resolve(self._read_key())
        self._at += 2 if is_array else 1
        if is_array:
            self._items[path] = self._items.get(path, -1) + 1
            path = (*path, self._items[path])
        return path

    def _resolve(self, key: tuple[str, ...]) -> KeyPath:
        """The path of a header's table; below an array of tables it refers to the newest item."""
        path: KeyPath = ()
        for part in key[:-1]:
            path = (*path, part)
            path = (*path, self._items[path]) if path in self._items else path
        return (*path, key[-1])

    def _read_key(self) -> tuple[str, ...]:
        parts: list[str] = []
        while True:
            self._skip(_INLINE_SPACE)
            parts.append(self._read_key_part())
            self._skip(_INLINE_SPACE)
            if not self._peek("."):
                return tuple(parts)
            self._at += 1

    def _read_key_part(self) -> str:
        start = self._at
        if self._peek('"') or self._peek("'"):
            self._skip_string()
            quoted = self._text[start : self._at]
            return str(tomllib.loads(f"key = {quoted}")["key"])
        self._skip(_BARE)
        if self._at == start:
            self._at += 1  # always make progress, even on an unexpected character
        return self._text[start : self._at]

    def _scan_pair(self, table: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = self._at
        path: KeyPath = (*table, *self._read_key())
        yield from _prefixes(path, start)
        self._at += 1  # the equals sign
        self._skip(_INLINE_SPACE)
        yield from self._scan_value(path)

    def _scan_value(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = self._at
        yield from self._scan_content(path)
        value = self._text[start : self._at].rstrip()  # a plain value is read to the end of its line
        self.spans[path] = (start, start + len(value))

    def _scan_content(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        if self._peek("["):
            yield from self._scan_array(path)
        elif self._peek("{"):
            yield from self._scan_inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._skip_string()
        else:
            self._skip(_SCALAR)

    def _scan_array(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        self._at += 1
        index = 0
        while self._skip(_SPACE) < len(self._text) and not self._peek("]"):
            yield (*path, index), self._at
            yield from self._scan_value((*path, index))
            index += 1
            self._skip_comma()
        self._at += 1

    def _scan_inline_table(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        self._at += 1
        while self._skip(_SPACE) < len(self._text) and not self._peek("}"):
            yield from self._scan_pair(path)
            self._skip_comma()
        self._at += 1

    def _skip_comma(self) -> None:
        self._skip(_SPACE)
        if self._peek(","):
            self._at += 1

    def _skip_string(self) -> None:
        quote = self._text[self._at]
        if self._peek(quote * 3):
            self._skip_long_string(quote)
            return
        self._at += 1
        while self._at < len(self._text) and not self._peek(quote):
            self._at += 2 if quote == '"' and self._peek("\\") else 1
        self._at += 1

    def _skip_long_string(self, quote: str) -> None:
        self._at += 3
        while self._at < len(self._text) and not self._peek(quote * 3):
            self._at += 2 if quote == '"' and self._peek("\\") else 1
        self._at += 3
        while self._peek(quote):  # up to two quotes may stand right before the closing three
            self._at += 1


def _prefixes(path: KeyPath, position: int) -> Iterator[tuple[KeyPath, int]]:
    for length in range(1, len(path) + 1):
        yield path[:length], position
