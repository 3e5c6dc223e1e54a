"""A run step by step: one line for each event, of a simulation or of a real run's event logs.

events = read_trace(Path("runs/demo-20261121/events"))
for line in format_trace(events, Filter(nodes=("client-1",), kinds=("trained", "applied"))):
    print(line)
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from psyche.errors import ConfigError
from psyche.telemetry.events import Event, read_events

MAX_FIELD: Final = 60  # characters of one field in `describe_event`
QUIET: Final = ("network", "wait_started", "wait_ended", "payload_received", "model_fetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events are shown.

    Args:
        nodes, kinds: patterns such as client-* or state_*; empty: all, but the frequent kinds only where named.
        from_s, to_s: seconds since the first event.
        height: of the round that an event names.
        all_kinds: the frequent kinds as well.
    """

    nodes: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    from_s: float = 0.0
    to_s: float = float("inf")
    height: int | None = None
    all_kinds: bool = False

    def shows(self, event: Event, since_s: float) -> bool:
        """Whether an event is shown, `since_s` seconds after the first one."""
        if not self.from_s <= since_s <= self.to_s:
            return False
        if self.nodes and not any(fnmatchcase(str(event["node"]), pattern) for pattern in self.nodes):
            return False
        if self.height is not None and event.get("height") != self.height:
            return False
        if self.kinds:
            return any(fnmatchcase(event["kind"], pattern) for pattern in self.kinds)
        return self.all_kinds or event["kind"] not in QUIET


def read_trace(path: Path) -> list[Event]:
    """The events of a log, or of all below a folder, by time.

    Raises:
        ConfigError: there are none.
    """
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    events = sorted(read_events(path), key=lambda event: event["t"])
    if not events:
        raise ConfigError(
            f"{path}: there are no events; a run's are in its folder events, a client's in its data folder"
        )
    return events


def read_lines(lines: Iterable[bytes]) -> list[Event]:
    """The events of a simulation."""
    return [json.loads(line) for line in lines]


def format_trace(events: Sequence[Event], wanted: Filter) -> Iterator[str]:
    """The lines of what is shown: seconds since the first event, node, kind, fields."""
    first = float(events[0]["t"]) if events else 0.0
    for event in events:
        since_s = float(event["t"]) - first
        if wanted.shows(event, since_s):
            yield describe_event(event | {"t": since_s})


def describe_event(event: Event) -> str:
    """One event on one line: time, node, kind, fields."""
    fields = [f"{name}={_shorten(value)}" for name, value in event.items() if name not in ("t", "node", "kind")]
    return f"{event['t']:>12.3f}  {event['node']:<10}  {event['kind']:<20}  {' '.join(fields)}"


def _shorten(value: object) -> str:
    text = str(value)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        return text[:12]
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"
