"""The event log: one JSON line per event, the source for live views, replay and tests.

A line is `{"t": unix seconds, "node": name, "kind": kind, ...fields}`. Bytes are hex, enums their
name in lower case. Each line is one `write` to the operating system, so a killed process loses at
most the line it was writing. `docs/events.md` lists the kinds.
"""

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

MAX_LINE_BYTES: Final = 64 << 10  # a longer event loses its fields: a log must not become the memory leak
MAX_TEXT: Final = 4_000  # characters of one text field: enough for a traceback's end
DEFAULT_MAX_BYTES: Final = 64 << 20  # per file; a demo of 240 rounds writes about 1 MB
DEFAULT_KEEP: Final = 5  # older files kept beside the running one
MAX_PENDING: Final = 4_096  # events a subscriber may lag behind before the oldest are dropped
RESERVED: Final = frozenset({"t", "node", "kind"})

Event = dict[str, Any]
_CONTAINERS: Final = (Mapping, list, tuple, deque, set, frozenset)
_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Subscription:
    """Events for one live view, newest kept: a slow reader loses the oldest and sees how many in `dropped`."""

    def __init__(self, limit: int) -> None:
        self._queue: deque[Event] = deque(maxlen=limit)
        self.dropped = 0

    def push(self, event: Event) -> None:
        """Add an event; the log does this."""
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(event)

    def drain(self) -> list[Event]:
        """Take everything that has come since the last call, oldest first."""
        events: list[Event] = []
        while self._queue:
            events.append(self._queue.popleft())
        return events


class EventLog:
    """Writes events to a file that rotates at `max_bytes`, and hands them to subscribers.

    `path` None writes nothing (subscribers still hear). May be called from any thread. A full disk
    never stops a node: lines that could not be written are counted in `lost`.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        node: str,
        max_bytes: int = DEFAULT_MAX_BYTES,
        keep: int = DEFAULT_KEEP,
        now: Callable[[], float] = time.time,
    ) -> None:
        if max_bytes < MAX_LINE_BYTES:
            raise ValueError(f"event log: max_bytes {max_bytes} must be at least {MAX_LINE_BYTES}")
        if keep < 0:
            raise ValueError(f"event log: keep {keep} must not be negative")
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

    def emit(self, kind: str, **fields: object) -> None:
        """Record that `kind` happened.

        Raises:
            ValueError: a field is named `t` or `node`, which every event has already.
        """
        if not RESERVED.isdisjoint(fields):
            raise ValueError(f"event {kind}: the fields t, node and kind are the log's own")
        event: Event = {"t": round(self._now(), 6), "node": self.node, "kind": kind}
        event.update((name, get_plain(value)) for name, value in fields.items())
        with self._lock:
            self._write(event)
            for subscription in self._subscriptions:
                subscription.push(event)

    def subscribe(self, limit: int = MAX_PENDING) -> Subscription:
        """A bounded queue of the events from now on."""
        subscription = Subscription(limit)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def close(self) -> None:
        """Close the file; later events reach subscribers only."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._size_bytes = os.fstat(self._fd).st_size
        if self._size_bytes and os.pread(self._fd, 1, self._size_bytes - 1) != b"\n":
            self._append(b"\n")  # a former self was killed within a line: end it, readers skip it

    def _append(self, line: bytes) -> None:
        try:
            written = os.write(self._fd, line)
        except OSError:  # disk full, quota: training goes on without the log
            self.lost += 1
            return
        self._size_bytes += written

    def _write(self, event: Event) -> None:
        if self._fd < 0 or self.path is None:
            return
        line = encode_event(event)
        if self._size_bytes and self._size_bytes + len(line) > self._max_bytes:
            self._rotate(self.path)
        self._append(line)

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


def encode_event(event: Mapping[str, Any]) -> bytes:
    """One line with its line feed, at most `MAX_LINE_BYTES`; too long, it keeps only t, node, kind and its size."""
    line = _encode(event).encode() + b"\n"
    if len(line) <= MAX_LINE_BYTES:
        return line
    short = {name: event[name] for name in ("t", "node", "kind")} | {"cut_bytes": len(line)}
    return _encode(short).encode() + b"\n"


def get_plain(value: object) -> Any:
    """`value` as JSON can hold it: bytes as hex, enums by name, other objects as their text, cut at `MAX_TEXT`."""
    if isinstance(value, Enum):
        return value.name.lower() if value.name else value.value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, _CONTAINERS):  # most fields are text or bytes
        return _get_plain_scalar(value)
    if isinstance(value, Mapping):
        return {str(name): get_plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((get_plain(item) for item in value), key=str)
    return [get_plain(item) for item in value]


def _get_plain_scalar(value: object) -> float | str:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()


def get_rotated(path: Path, number: int) -> Path:
    """The path of the `number`-th older file; 0 is the running one."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def decode_event(line: bytes) -> Event | None:
    """The event of one line, or None where it is torn or is no event."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    known = isinstance(event.get("t"), int | float) and isinstance(event.get("kind"), str)
    return event if known and isinstance(event.get("node"), str) else None


def read_events(path: Path) -> Iterator[Event]:
    """All events at `path`, those of rotated files first; torn lines are skipped.

    `path` may be a file or a folder; of a folder, every `*.jsonl` beneath it is read, merged by time.
    """
    if path.is_dir():
        return iter(sorted(_read_folder(path), key=lambda event: event["t"]))
    return _read_file(path)


def _read_folder(folder: Path) -> Iterable[Event]:
    for path in sorted(folder.rglob("*.jsonl")):
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[Event]:
    numbers = [int(p.suffix[1:]) for p in path.parent.glob(f"{path.name}.*") if p.suffix[1:].isdigit()]
    for number in [*sorted(numbers, reverse=True), 0]:
        try:
            file = get_rotated(path, number).open("rb")
        except FileNotFoundError:
            continue
        with file:
            yield from filter(None, map(decode_event, file))


class EventTail:
    """Follows a growing event log across rotations and restarts of its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0
        self._partial = b""

    def read(self, limit_bytes: int = 1 << 20) -> list[Event]:
        """The events since the last call, at most `limit_bytes` of them; an unfinished line waits for its end.

        What a rotation moved away unread is read from the rotated file first.
        """
        events: list[Event] = []
        rotated = self._get_rotated_away()
        if rotated is not None:
            events += self._read_from(rotated, -1)  # at most one file of the writer's max_bytes
            self._inode, self._offset, self._partial = 0, 0, b""
        return events + self._read_from(self.path, limit_bytes)

    def _get_rotated_away(self) -> Path | None:
        first = get_rotated(self.path, 1)
        try:
            moved = self._inode != 0 and first.stat().st_ino == self._inode
        except FileNotFoundError:
            return None
        return first if moved else None

    def _read_from(self, path: Path, limit_bytes: int) -> list[Event]:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._inode, self._offset, self._partial = status.st_ino, 0, b""
            file.seek(self._offset)
            data = file.read(limit_bytes)
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE_BYTES:
            self._partial = b""
        return [event for event in map(decode_event, lines) if event is not None]
