"""Bodies of instructions as core would read them: strict, so that what reads is a message, and nothing else is."""

from collections.abc import Callable
from typing import Any

from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import decode_config, decode_model, decode_witness
from psyche.core.encoding.tables import CHECKPOINT, METADATA, PROGRESS
from psyche.core.rules.apply import KINDS
from psyche.core.state.messages import Message, WitnessMessage
from psyche.errors import WireError

# What programs on a chain read; a form never changes.
FORMS = {
    "tick": "entropy",
    "join": "key u64",
    "leave": "",
    "withdraw": "u16 u16",
    "warmup_witness": "u16 u16 key",
    "health_check": "u16 u32 u16",
    "checkpoint": "u16 key source",
    "report_equivocation": "u16 u32 u16",
    "pause": "",
    "resume": "",
    "recover": "u64 u64",
    "reclaim_slot": "",
    "set_rates": "rate rate",
    "collect": "claims",
    "update": "config model progress metadata bootstrap digest rate",
    "update_client_version": "version",
}
_NUMBERS = {"u16": 2, "u32": 4, "u64": 8}
_MOST_ENTRIES = {"claims": (1, 64), "bootstrap": (0, 4)}


def decode_body(number: int, body: bytes) -> Message:
    """The message of a kind.

    Raises:
        WireError: the body is not one of this kind.
    """
    kind = next((kind for kind in KINDS if kind.number == number), None)
    if kind is None:
        raise WireError(f"no kind has the number {number}")
    if kind.type is WitnessMessage:
        return decode_witness(body)
    reader = Reader(body)
    try:
        message = kind.type(*[reader.read(form) for form in FORMS[kind.name].split()])
    except (IndexError, UnicodeDecodeError) as error:
        raise WireError(f"{kind.name}: {error}") from error
    if reader.rest:
        raise WireError(f"{kind.name}: {len(reader.rest)} bytes too many")
    return message


class Reader:
    """Takes a body apart, from its front."""

    def __init__(self, raw: bytes) -> None:
        self.rest = raw

    def read(self, form: str) -> Any:
        """A value of this form."""
        if form in _NUMBERS:
            return self._number(_NUMBERS[form])
        forms: dict[str, Callable[[], Any]] = {
            "key": lambda: self._take(32),
            "entropy": lambda: self._choose(lambda: None, lambda: EXPIRED, lambda: self._take(32)),
            "source": lambda: CHECKPOINT.read(self._take(136)),
            "rate": lambda: self._option(lambda: self._number(8)),
            "digest": lambda: self._option(lambda: self._take(32)),
            "claims": lambda: self._entries("claims", lambda: (self._take(32), self.read("rate"))),
            "config": lambda: self._option(lambda: decode_config(self._take(128))),
            "model": lambda: self._option(lambda: decode_model(self._take(960))),
            "progress": lambda: self._option(lambda: PROGRESS.decode(self._take(16))),
            "metadata": lambda: self._option(lambda: METADATA.decode(self._take(360))),
            "bootstrap": lambda: self._option(lambda: self._entries("bootstrap", lambda: self._text(128))),
            "version": lambda: self._text(96),
        }
        return forms[form]()

    def _take(self, size: int) -> bytes:
        if size > len(self.rest):
            raise WireError(f"{len(self.rest)} bytes are left, {size} are needed")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _choose(self, *choices: Callable[[], Any]) -> Any:
        return choices[self._number(1)]()

    def _option(self, read: Callable[[], Any]) -> Any:
        return self._choose(lambda: None, read)

    def _entries(self, name: str, read: Callable[[], Any]) -> tuple[Any, ...]:
        count, (least, most) = self._number(4), _MOST_ENTRIES[name]
        if not least <= count <= most:
            raise WireError(f"{count} entries, must be {least} to {most}")
        return tuple(read() for _ in range(count))

    def _text(self, size: int) -> str:
        used = self._take(size).rstrip(b"\0")
        if b"\0" in used:
            raise WireError("a zero byte within a text")
        return used.decode()
