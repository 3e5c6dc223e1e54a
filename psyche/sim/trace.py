"""The event log of a simulated world: the events of all machines, and of the world itself."""

import json
from collections import deque
from collections.abc import Callable
from typing import Final

import trio
from blake3 import blake3

from psyche.analysis.viewer import describe_line
from psyche.telemetry import types
from psyche.telemetry.events import Entry, build_line, encode_entry, read_entry

EVENT_DIGITS: Final = 6  # decimals of an event's time in seconds
LAST_EVENTS: Final = 50
WORLD: Final = "world"
Listener = Callable[[str, types.Event], None]  # (node, event)


class Trace:
    """Collects events; `digest` is the BLAKE3 of all that there ever were, as lines of a file, in hex.

    Args:
        root: a path to cut out of texts, since it differs from run to run.
        keep_lines: whether all events stay in memory, or only the last 50.
    """

    def __init__(self, root: str, *, keep_lines: bool = True) -> None:
        self.entries: list[Entry] = []
        self.count = 0
        self.last: deque[Entry] = deque(maxlen=LAST_EVENTS)
        self.listeners: list[Listener] = []
        self._root = root.encode()
        self._keep = keep_lines
        self._hasher = blake3()

    def emit(self, node: str, event: types.Event) -> None:
        entry = Entry(round(trio.current_time(), EVENT_DIGITS), node, event)
        raw = encode_entry(entry)
        # Errors and tracebacks name files; read again, the entry says what the digest covers.
        if self._root in raw:
            raw = raw.replace(self._root, b"")
            entry = read_entry(json.loads(raw))
        self._hasher.update(raw)
        self.count += 1
        self.last.append(entry)
        if self._keep:
            self.entries.append(entry)
        for listener in self.listeners:
            listener(node, event)

    def note(self, event: types.Event) -> None:
        self.emit(WORLD, event)

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def describe_last(self) -> list[str]:
        return [describe_line(build_line(entry)) for entry in self.last]


class NodeLog:
    """The log of one process; events after the process's death are dropped."""

    def __init__(self, trace: Trace, node: str) -> None:
        self._trace = trace
        self._node = node
        self.is_alive = True

    def emit(self, event: types.Event) -> None:
        if self.is_alive:
            self._trace.emit(self._node, event)
