"""Keeps the events of a part of a client or of a server, for a test to inspect."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from psyche.telemetry import types

E = TypeVar("E", bound=types.Event)


def choose(events: Iterable[types.Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


@dataclass
class Log:
    """A sink that keeps every event; it can be called, for parts that want a function to log with."""

    told: list[types.Event] = field(default_factory=list)

    def emit(self, event: types.Event) -> None:
        self.told.append(event)

    __call__ = emit

    @property
    def kinds(self) -> list[type[types.Event]]:
        return [type(event) for event in self.told]

    def get(self, kind: type[E]) -> list[E]:
        return choose(self.told, kind)
