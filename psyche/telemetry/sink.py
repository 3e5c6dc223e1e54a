"""The interface that takes events, and one that drops them."""

from typing import Protocol

from psyche.telemetry.types import Event


class EventSink(Protocol):
    """Takes the events of a server or client (`telemetry.EventLog`)."""

    def emit(self, event: Event) -> None: ...


class NoEvents:
    def emit(self, event: Event) -> None: ...
