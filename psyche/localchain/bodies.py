"""Bodies of instructions, read back as coordinator messages: what `instructions` writes, by the same annotations."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from psyche.backends.solana.interface.instructions import LENGTH_BYTES, Forms, find_field_forms, find_width
from psyche.core.encoding.account import decode_config, decode_model, decode_witness
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, METADATA, MODEL, PROGRESS
from psyche.core.rules.apply import KINDS
from psyche.core.state.messages import Between, Message, Sized, Tick, WitnessMessage
from psyche.core.state.state import Checkpoint, Config, Metadata, Model, Progress
from psyche.errors import WireError


class Body:
    """A body that is taken apart from its front."""

    def __init__(self, raw: bytes) -> None:
        self.rest = raw

    def take(self, size_bytes: int) -> bytes:
        """The next bytes; ValueError if fewer are left."""
        if size_bytes > len(self.rest):
            raise ValueError(f"{len(self.rest)} bytes are left, {size_bytes} are needed")
        taken, self.rest = self.rest[:size_bytes], self.rest[size_bytes:]
        return taken

    def take_number(self, size_bytes: int) -> int:
        """The next number."""
        return int.from_bytes(self.take(size_bytes), "little")


Read: TypeAlias = Callable[[Body], Any]


def _read_number(rule: Between) -> Read:
    width = find_width(rule)
    return lambda body: body.take_number(width)


def _read_raw(length: int) -> Read:
    return lambda body: body.take(length)


def _read_text(limit: int) -> Read:
    return lambda body: body.take(limit).rstrip(b"\0").decode()


def _read_row(readers: Sequence[Read]) -> Read:
    return lambda body: tuple(read(body) for read in readers)


def _read_option(read: Read) -> Read:
    def read_one(body: Body) -> Any:
        tag = body.take_number(1)
        if tag > 1:
            raise ValueError(f"{tag} is neither 0 nor 1")
        return read(body) if tag else None

    return read_one


def _read_entries(read: Read, rule: Sized) -> Read:
    def read_all(body: Body) -> tuple[Any, ...]:
        count = body.take_number(LENGTH_BYTES)
        if not rule.low <= count <= rule.high:
            raise ValueError(f"{count} entries, must be {rule.low} to {rule.high}")
        return tuple(read(body) for _ in range(count))

    return read_all


_FORMS: Final = Forms[Read](
    whole={
        Config: lambda body: decode_config(body.take(CONFIG.size)),
        Model: lambda body: decode_model(body.take(MODEL.size)),
        Progress: lambda body: PROGRESS.decode(body.take(PROGRESS.size)),
        Metadata: lambda body: METADATA.decode(body.take(METADATA.size)),
        Checkpoint: lambda body: CHECKPOINT.read(body.take(CHECKPOINT.size)),
    },
    number=_read_number,
    text=_read_text,
    raw=_read_raw,
    row=_read_row,
    option=_read_option,
    entries=_read_entries,
)
_READERS: Final = {  # a tick's entropy is read from the chain, not from a body
    kind.type: (kind.name, find_field_forms(_FORMS, kind.type))
    for kind in KINDS
    if kind.type not in (WitnessMessage, Tick)
}


def decode_body(kind: type[Message], raw: bytes) -> Message:
    """Read a body as a message of this kind, which is not a tick.

    Raises:
        WireError: it is not one; the text names message, field and reason.
    """
    if kind is WitnessMessage:
        return decode_witness(raw)
    name, readers = _READERS[kind]
    body, values = Body(raw), {}
    try:
        for field, read in readers:
            values[field] = read(body)
    except (ValueError, WireError) as error:
        raise WireError(f"{name}.{readers[len(values)][0]}: {error}") from error
    if body.rest:
        raise WireError(f"{name}: {len(body.rest)} bytes too many")
    return kind(**values)
