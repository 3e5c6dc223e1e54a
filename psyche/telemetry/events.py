"""The event log: one JSON line per event, the source for live views, replay and tests.

A line is `{"t": unix seconds, "node": name, "kind": kind, ...fields}`; `psyche.telemetry.types` has a
class for every kind, `docs/events.md` lists them. Each line is one `write` to the operating system, so
a killed process loses at most the line it was writing.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from psyche.telemetry import types

MAX_LINE_BYTES: Final = 64 << 10  # a longer event loses its fields, to bound the log
DEFAULT_MAX_BYTES: Final = 64 << 20  # per file; a demo of 240 rounds writes about 1 MB
DEFAULT_KEEP: Final = 5  # rotated files kept beside the current one
MAX_UNIX: Final = 1e12  # seconds: no clock shows more, and NaN is not within
MAX_READ_BYTES: Final = 1 << 20  # of a growing log in one call, so that a live view stays responsive
MAX_PENDING: Final = 4_096  # events a subscriber may lag behind before the oldest are dropped

_Kind = TypeVar("_Kind", bound=types.Event)
Line = dict[str, Any]  # an event as plain data, with its time and node
_decode: Final = msgspec.json.Decoder().decode  # a quarter of json's time
_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Entry(NamedTuple):
    """An event, with the time (unix seconds; in a simulation seconds since its start) and the node that it is of."""

    t: float
    node: str
    event: types.Event


class Subscription:
    """A bounded queue of events for one live view: a slow reader loses the oldest; `dropped` counts them."""

    def __init__(self, limit: int) -> None:
        self._queue: deque[Entry] = deque(maxlen=limit)
        self.dropped = 0

    def push(self, entry: Entry) -> None:
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(entry)

    def drain(self) -> list[Entry]:
        # One by one: another thread may push meanwhile, and what it pushes must not be cleared unread.
        return [self._queue.popleft() for _ in range(len(self._queue))]


class EventLog:
    """Writes events to a file that rotates at `max_bytes`, and hands them to subscribers.

    With `path` None nothing is written, but subscribers still get the events. May be called from any thread.
    A full disk never stops a node: lines that could not be written are counted in `lost`.
    """

    def __init__(
        self, path: Path | None, *, node: str, max_bytes: int = DEFAULT_MAX_BYTES, keep: int = DEFAULT_KEEP,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.path = path
        self.node = node
        self.lost = 0
        self._max_bytes = max_bytes
        self._keep = keep
        self._now = now
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._fd = -1
        self._size_bytes = 0
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open(path)

    def emit(self, event: types.Event) -> None:
        entry = Entry(round(self._now(), 6), self.node, event)
        with self._lock:  # subscribers get the events in the order of the file
            self._write(entry)
            for subscription in self._subscriptions:
                subscription.push(entry)

    def subscribe(self, limit: int = MAX_PENDING) -> Subscription:
        subscription = Subscription(limit)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def read_kind(self, kind: type[_Kind]) -> Iterator[_Kind]:
        """The events of one type in the log's files, the oldest first; other lines are not decoded."""
        mark = f'"kind":"{types.get_type_name(kind)}"'.encode()
        raws = () if self.path is None else (raw for raw in _read_raw(self.path) if mark in raw)
        for line in filter(None, map(decode_line, raws)):
            if isinstance(event := read_event(line), kind):
                yield event

    def close(self) -> None:
        """Close the file; later events go to subscribers only."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size_bytes = os.fstat(self._fd).st_size
        if self._size_bytes and os.pread(self._fd, 1, self._size_bytes - 1) != b"\n":
            self._append(b"\n")  # an earlier process was killed in mid-line: end that line, readers skip it

    def _append(self, raw: bytes) -> None:
        try:
            written = os.write(self._fd, raw)
        except OSError:  # full disk or quota: training goes on without the log
            self.lost += 1
            return
        self._size_bytes += written

    def _write(self, entry: Entry) -> None:
        if self._fd < 0 or self.path is None:
            return
        raw = encode_entry(entry)
        if self._size_bytes and self._size_bytes + len(raw) > self._max_bytes:
            self._rotate(self.path)
        self._append(raw)

    def _rotate(self, path: Path) -> None:
        os.close(self._fd)
        self._fd = -1
        try:
            for number in range(self._keep, 0, -1):
                older = get_rotated(path, number - 1)
                if older.exists():
                    older.replace(get_rotated(path, number))
            if self._keep == 0:
                path.unlink(missing_ok=True)
        except OSError:
            self.lost += 1
        self._open(path)


def build_line(entry: Entry) -> Line:
    line: Line = {"t": entry.t, "node": entry.node}
    types.fill_line(line, entry.event)
    return line


def encode_entry(entry: Entry) -> bytes:
    return encode_line(build_line(entry))


def encode_line(line: Line) -> bytes:
    """One line with its line feed, at most `MAX_LINE_BYTES`; a longer one keeps only t, node, kind and its size."""
    raw = _encode(line).encode() + b"\n"
    if len(raw) <= MAX_LINE_BYTES:
        return raw
    short = {name: line[name] for name in ("t", "node", "kind")} | {"cut_bytes": len(raw)}
    return _encode(short).encode() + b"\n"


def get_rotated(path: Path, number: int) -> Path:
    """The path of the `number`-th rotated file; 0 is the current one."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def decode_line(raw: bytes) -> Line | None:
    """Decode one line; None if it is incomplete or not an event."""
    try:
        line = _decode(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict):
        return None
    t = line.get("t")
    known = isinstance(t, int | float) and -MAX_UNIX <= t <= MAX_UNIX and isinstance(line.get("kind"), str)
    return line if known and isinstance(line.get("node"), str) else None


def read_event(line: Line) -> types.Event:
    """The event of a line; `types.Unknown` if its type or its fields are of another version."""
    return types.read_plain(line["kind"], line)


def read_entry(line: Line) -> Entry:
    return Entry(float(line["t"]), line["node"], read_event(line))


def find_logs(path: Path) -> list[Path]:
    """The event logs at `path`: itself, or all `*.jsonl` files below it if it is a folder."""
    if not path.is_dir():
        return [path]
    return sorted(Path(folder, name) for folder, _, names in os.walk(path) for name in names if name.endswith(".jsonl"))


def read_lines(path: Path) -> Iterator[Line]:
    """All events at `path`, those of rotated files first; incomplete lines are skipped.

    `path` may be a file or a folder; the logs below a folder are merged by time.
    """
    if path.is_dir():
        logs = (line for log in find_logs(path) for line in _read_file(log))
        return iter(sorted(logs, key=lambda line: line["t"]))
    return _read_file(path)


def read_entries(path: Path) -> Iterator[Entry]:
    """As `read_lines`, with the events themselves."""
    return map(read_entry, read_lines(path))


def _read_file(path: Path) -> Iterator[Line]:
    return filter(None, map(decode_line, _read_raw(path)))


def _read_raw(path: Path) -> Iterator[bytes]:
    for number in [*sorted(_list_rotated(path), reverse=True), 0]:
        try:
            file = get_rotated(path, number).open("rb")
        except FileNotFoundError:
            continue
        with file:
            yield from file


class EventTail:
    """Follows a growing event log across rotations and restarts of its writer; `older`: from its rotated files on.

    `torn` counts lines that are no events, `missing` files that went away unread.
    """

    def __init__(self, path: Path, *, older: bool = False) -> None:
        self.path = path
        self.torn = 0
        self.missing = 0
        self._older = older
        self._inode = 0
        self._done: set[int] = set()  # inodes of older files that are read
        self._offset = 0
        self._partial = b""

    def read(self, limit_bytes: int = MAX_READ_BYTES) -> list[Line]:
        """Read the events since the last call, about `limit_bytes` at most; an incomplete line is left for the next.

        Events that a rotation moved away unread are read from the rotated files first.
        """
        return [*self.decode(self.read_raw(limit_bytes))]

    def decode(self, raws: Iterable[bytes]) -> Iterator[Line]:
        """The events of lines that `read_raw` gave, one by one: as bytes they take a tenth of the memory."""
        for raw in raws:
            line = decode_line(raw)
            if line is None:
                self.torn += 1
            else:
                yield line

    def read_raw(self, limit_bytes: int = MAX_READ_BYTES) -> list[bytes]:
        """As `read`, the lines as they are."""
        lines: list[bytes] = []
        if self._is_unchanged():
            return lines
        left_bytes = limit_bytes
        while left_bytes > 0 and (number := self._find_number()) is not None:
            read_bytes = self._read_from(get_rotated(self.path, number), left_bytes, lines)
            left_bytes -= read_bytes
            if number == 0:
                break
            if not read_bytes:  # it grows no more: the next newer file
                self._done.add(self._inode)
                self._begin(get_rotated(self.path, number - 1))
        return lines

    def _is_unchanged(self) -> bool:
        """Whether there is nothing to read, at the price of one call: a watcher follows hundreds of logs."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return (status.st_ino, status.st_size) == (self._inode, self._offset)

    def _find_number(self) -> int | None:
        """The number of the file that is being read, by its inode: rotations rename it."""
        if _get_inode(self.path) == self._inode != 0:
            return 0
        is_new = self._inode == 0
        numbers = [0] if is_new and not self._older else sorted([*_list_rotated(self.path), 0])
        inodes = {number: _get_inode(get_rotated(self.path, number)) for number in numbers}
        found = [number for number, inode in inodes.items() if inode == self._inode != 0]
        if found:
            return found[0]
        self.missing += not is_new
        self._done &= set(inodes.values())
        number = max(number for number, inode in inodes.items() if number == 0 or inode not in self._done)
        self._begin(get_rotated(self.path, number))
        return number if self._inode else None

    def _begin(self, path: Path) -> None:
        self._inode, self._offset, self._partial = _get_inode(path), 0, b""

    def _read_from(self, path: Path, limit_bytes: int, lines: list[bytes]) -> int:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return 0
        with file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._begin(path)
            file.seek(self._offset)
            data = file.read(limit_bytes)
        self._offset += len(data)
        *raws, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:  # no event is so long: it would be held for ever
            self._partial = b""
            self.torn += 1
        lines += filter(None, raws)
        return len(data)


def _get_inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _list_rotated(path: Path) -> list[int]:
    return [int(p.suffix[1:]) for p in path.parent.glob(f"{path.name}.*") if p.suffix[1:].isdigit()]
