"""The position of each key in a TOML document; `tomllib` gives values but no positions.

The scanner reads only documents that `tomllib` has accepted, so it does not check the grammar again. If it
misunderstands something, a line number is lost or wrong, never a value.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

KeyPath = tuple[str | int, ...]

_QUOTED = r'"(?:[^"\\]|\\.)*"|\'[^\']*\''
# Up to two quotes may stand right before the closing three.
_LONG = r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}'
_PART = rf"(?:{_QUOTED}|[A-Za-z0-9_-]+)"
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_HEADER = re.compile(rf"\[(?P<array>\[?)[ \t]*(?P<key>{_KEY})[ \t]*\]\]?", re.DOTALL)
_START = re.compile(rf"(?P<key>{_KEY})[ \t]*=[ \t]*", re.DOTALL)
_SCALAR = re.compile(rf"{_LONG}|{_QUOTED}|[^,\]}}#\n]*", re.DOTALL)


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
            start = self._at
            if header := _HEADER.match(self._text, start):
                self._at = header.end()
                table = self._resolve(_split(header["key"]), is_array=bool(header["array"]))
                yield from _prefixes(table, start)
            else:
                yield from self._scan_pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._at

    def _peek(self, token: str) -> bool:
        return self._text.startswith(token, self._at)

    def _resolve(self, key: tuple[str, ...], *, is_array: bool) -> KeyPath:
        """The path of a header's table; below an array of tables it refers to the newest item."""
        path: KeyPath = ()
        for part in key[:-1]:
            path = (*path, part)
            path = (*path, self._items[path]) if path in self._items else path
        path = (*path, key[-1])
        if is_array:
            self._items[path] = self._items.get(path, -1) + 1
            path = (*path, self._items[path])
        return path

    def _scan_pair(self, table: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = _START.match(self._text, self._at)
        if start is None:
            self._at += 1  # always make progress, even on an unexpected character
            return
        path: KeyPath = (*table, *_split(start["key"]))
        yield from _prefixes(path, self._at)
        self._at = start.end()
        yield from self._scan_value(path)

    def _scan_value(self, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
        start = self._at
        if self._peek("[") or self._peek("{"):
            yield from self._scan_inside(path, is_array=self._peek("["))
        else:
            self._skip(_SCALAR)
        value = self._text[start : self._at].rstrip()  # a plain value is read to the end of its line
        self.spans[path] = (start, start + len(value))

    def _scan_inside(self, path: KeyPath, *, is_array: bool) -> Iterator[tuple[KeyPath, int]]:
        self._at += 1
        index = 0
        while self._skip(_SPACE) < len(self._text) and not self._peek("]" if is_array else "}"):
            if is_array:
                yield (*path, index), self._at
                yield from self._scan_value((*path, index))
                index += 1
            else:
                yield from self._scan_pair(path)
            self._skip(_SPACE)
            self._at += self._peek(",")
        self._at += 1


def _split(key: str) -> tuple[str, ...]:
    """The parts of a dotted key, as tomllib reads them."""
    parts: list[str] = []
    node: Any = tomllib.loads(f"{key} = 0")
    while node:
        ((part, node),) = node.items()
        parts.append(part)
    return tuple(parts)


def _prefixes(path: KeyPath, position: int) -> Iterator[tuple[KeyPath, int]]:
    for length in range(1, len(path) + 1):
        yield path[:length], position
