"""The event log of a simulated world: one JSON line per event of any machine, and of the world itself."""

import json
from collections import deque
from collections.abc import Callable
from typing import Final

import trio
from blake3 import blake3

from psyche.analysis.viewer import decode_lines, describe_line
from psyche.telemetry import types
from psyche.telemetry.events import Line

EVENT_DIGITS: Final = 6  # decimals of an event's time in seconds
LAST_EVENTS: Final = 50
WORLD: Final = "world"
Listener = Callable[[str, types.Event], None]  # (node, event)
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Trace:
    """Collects events; `digest` covers every line there ever was.

    Args:
        root: a path to cut out of texts, since it differs from run to run.
        keep_lines: whether all lines stay in memory, or only the last 50 events.
    """

    def __init__(self, root: str, *, keep_lines: bool = True) -> None:
        self.lines: list[bytes] = []
        self.count = 0
        self.last: deque[bytes] = deque(maxlen=LAST_EVENTS)
        self.listeners: list[Listener] = []
        self._root = root.encode()
        self._keep = keep_lines
        self._hasher = blake3()

    def emit(self, node: str, event: types.Event) -> None:
        """Log an event of `node`."""
        line: Line = {"t": round(trio.current_time(), EVENT_DIGITS), "node": node}
        types.fill_line(line, event)
        raw = _encode(line).encode().replace(self._root, b"") + b"\n"
        self._hasher.update(raw)
        self.count += 1
        self.last.append(raw)
        if self._keep:
            self.lines.append(raw)
        for listener in self.listeners:
            listener(node, event)

    def note(self, event: types.Event) -> None:
        """Log an event of the world itself."""
        self.emit(WORLD, event)

    @property
    def digest(self) -> str:
        """BLAKE3 of all lines, in hex."""
        return self._hasher.hexdigest()

    def describe_last(self) -> list[str]:
        """The last events, one line each, in columns."""
        return [describe_line(line) for line in decode_lines(self.last)]


class NodeLog:
    """The log of one process; events after the process's death are dropped."""

    def __init__(self, trace: Trace, node: str) -> None:
        self._trace = trace
        self._node = node
        self.is_alive = True

    def emit(self, event: types.Event) -> None:
        """Log an event."""
        if self.is_alive:
            self._trace.emit(self._node, event)
