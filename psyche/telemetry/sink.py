"""Where events go, if anywhere."""

from typing import Protocol

from psyche.telemetry.kinds import Event


class EventSink(Protocol):
    """Where the events of a server or client go (`telemetry.EventLog`)."""

    def emit(self, event: Event) -> None:
        """Record that something happened."""
        ...


class NoEvents:
    """Forgets every event."""

    def emit(self, event: Event) -> None:
        """Do nothing."""
