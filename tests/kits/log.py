"""What a part of a client or of a server says, kept for a test to look at."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Log:
    """A sink that keeps every event; where a part wants a function to log with, it is that function, too."""

    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def emit(self, kind: str, **fields: object) -> None:
        """See `EventSink.emit`."""
        self.told.append((kind, fields))

    __call__ = emit

    @property
    def kinds(self) -> list[str]:
        """The kinds of all events, in order."""
        return [kind for kind, _ in self.told]

    def get(self, kind: str) -> list[dict[str, Any]]:
        """The fields of the events of a kind."""
        return [fields for told, fields in self.told if told == kind]

    def get_values(self, kind: str, name: str) -> list[Any]:
        """One field of them."""
        return [fields[name] for fields in self.get(kind)]
