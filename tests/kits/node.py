"""One process of a run under test, with its events, its last output lines and its exit codes."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from psyche.telemetry import types
from psyche.telemetry.events import EventTail, Line, read_event
from psyche.testnet.process import Child, describe_exit_status

SHOWN_EVENTS: Final = 14
SHOWN_LINES: Final = 6
QUIET: Final = frozenset({"network", "payload_received", "model_fetch"})  # left out of a failure's message
LATE_S: Final = 5.0  # how late a loaded machine may notice that a wait is over
WITHOUT_DEADLINE: Final = frozenset(
    {
        types.Wait.MORE_MEMBERS,
        types.Wait.FORMATION,
        types.Wait.OWNER,
        types.Wait.NEXT_EPOCH,
        types.Wait.BACKEND,
        types.Wait.PERMISSION,
    }
)


@dataclass(slots=True)
class Node:
    """One node: its running process, its events so far, and the exit codes of its former processes."""

    name: str
    tail: EventTail
    child: Child | None = None
    events: list[Line] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    starts: int = 0
    is_ending: bool = False  # we killed or interrupted it: any exit code is fine

    def read(self) -> None:
        """Read the node's new events."""
        while found := self.tail.read():
            self.events += found

    def describe(self) -> str:
        """Describe the node's state, its last events and its last output lines."""
        state = "never started" if self.child is None else "running"
        if self.child is not None and not self.child.is_running():
            state = describe_exit_status(self.codes[-1] if self.codes else None)
        shown = [event for event in self.events if event["kind"] not in QUIET][-SHOWN_EVENTS:]
        lines = [f"{self.name}: {state}, started {self.starts} times"]
        lines += [f"    {_format_event(event)}" for event in shown]
        if self.child is not None:
            lines += [f"    > {line[:300]}" for line in self.child.get_last_lines(SHOWN_LINES)]
        return "\n".join(lines)


def _format_event(event: Line) -> str:
    fields = {name: value for name, value in event.items() if name not in ("t", "node", "kind")}
    clock = time.strftime("%H:%M:%S", time.localtime(event["t"]))
    return f"{clock}{event['t'] % 1:.2f} {event['kind']} {json.dumps(fields)[:240]}"


def matches(event: Line, kind: str, fields: Mapping[str, object]) -> bool:
    """Whether an event is of this kind and its fields have these values."""
    return event["kind"] == kind and all(event.get(name) == value for name, value in fields.items())


def find_overlong_waits(lines: Iterable[Line]) -> list[Line]:
    """Waits that ended later than their deadline, and waits without a deadline that need one."""
    found: list[Line] = []
    for line in lines:
        event = read_event(line)
        if not isinstance(event, types.WaitEnded):
            continue
        if event.until is None and event.wait not in WITHOUT_DEADLINE:
            found.append(line)
        if event.until is not None and line["t"] > event.until + LATE_S:
            found.append(line)
    return found
