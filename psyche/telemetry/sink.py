"""Where events go, if anywhere."""

from typing import Protocol


class EventSink(Protocol):
    """Where the events of a server or client go (`telemetry.EventLog`)."""

    def emit(self, kind: str, **fields: object) -> None:
        """Record that `kind` happened."""
        ...


class NoEvents:
    """Forgets every event."""

    def emit(self, kind: str, **fields: object) -> None:
        """Do nothing."""
