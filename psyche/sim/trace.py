"""The event log of a simulated world: one JSON line per event of any machine, and of the world itself."""

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio
from blake3 import blake3

from psyche.analysis.viewer import describe_event
from psyche.telemetry.events import Event, get_plain

EVENT_DIGITS: Final = 6  # of an event's time in seconds
LAST_EVENTS: Final = 50
WORLD: Final = "world"
Listener = Callable[[str, str, dict[str, object]], None]
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Trace:
    """Collects events; `digest` covers every line there ever was.

    Args:
        root: a path that is cut out of texts, for it differs from run to run.
        keep_lines: whether all lines stay in memory, or the last 50 events only.
    """

    def __init__(self, root: str, *, keep_lines: bool = True) -> None:
        self.lines: list[bytes] = []
        self.count = 0
        self.last: deque[Event] = deque(maxlen=LAST_EVENTS)
        self.listeners: list[Listener] = []
        self._root = root
        self._keep = keep_lines
        self._hasher = blake3()

    def emit(self, node: str, kind: str, fields: dict[str, object]) -> None:
        """Something happened at `node`."""
        event: Event = {"t": round(trio.current_time(), EVENT_DIGITS), "node": node, "kind": kind}
        for name, value in fields.items():
            event[name] = value if type(value) is int else self._clean(get_plain(value))
        line = _encode(event).encode() + b"\n"
        self._hasher.update(line)
        self.count += 1
        self.last.append(event)
        if self._keep:
            self.lines.append(line)
        for listener in self.listeners:
            listener(node, kind, fields)

    def note(self, kind: str, **fields: object) -> None:
        """The world itself did something."""
        self.emit(WORLD, kind, fields)

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str) and self._root in value:
            return value.replace(self._root, "")
        return value

    @property
    def digest(self) -> str:
        """BLAKE3 of all lines, in hex."""
        return self._hasher.hexdigest()

    def describe_last(self) -> list[str]:
        """The last events, one line each, in columns."""
        return [describe_event(event) for event in self.last]


class NodeLog:
    """The log of one process: what it emits once it is dead is lost."""

    def __init__(self, trace: Trace, node: str) -> None:
        self._trace = trace
        self._node = node
        self.is_alive = True

    def emit(self, kind: str, **fields: object) -> None:
        """Record that `kind` happened."""
        if self.is_alive:
            self._trace.emit(self._node, kind, fields)
