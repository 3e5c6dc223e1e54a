"""Events of which a test gives only the fields that matter, and a log that keeps events for a test to inspect.

log.emit(make(types.Trained, height=3, loss=2.5))
assert log.get(types.ClientEnded)[0].code == 1
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

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


def make(kind: type[E], **given: object) -> E:
    """An event with these fields; the other required fields are zero, empty or the first value of their type."""
    hints = get_type_hints(kind)
    fields = msgspec.structs.fields(kind)
    blank = {one.name: _make_blank(hints[one.name]) for one in fields if one.default is msgspec.NODEFAULT}
    return kind(**(blank | given))


def _make_blank(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return None if NoneType in get_args(hint) else _make_blank(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    return (get_origin(hint) or hint)()
