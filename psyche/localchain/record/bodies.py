"""Bodies of instructions, read back as coordinator messages: what `instructions` writes, by the same annotations."""

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

from psyche.chain.instructions import LENGTH_BYTES, find_width
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

_LAYOUTS: Final[dict[type, Read]] = {
    Config: lambda body: decode_config(body.take(CONFIG.size)),
    Model: lambda body: decode_model(body.take(MODEL.size)),
    Progress: lambda body: PROGRESS.decode(body.take(PROGRESS.size)),
    Metadata: lambda body: METADATA.decode(body.take(METADATA.size)),
    Checkpoint: lambda body: CHECKPOINT.read(body.take(CHECKPOINT.size)),
}


def _find_reader(hint: Any, rule: Between | Sized | None = None) -> Read:
    """Build the reader of an annotation; `rule` comes from the enclosing one."""
    if get_origin(hint) is Annotated:
        inner, rule = get_args(hint)[:2]
        return _find_reader(inner, rule)
    if get_origin(hint) is tuple:
        return _find_list_reader(get_args(hint), rule)
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (one for one in get_args(hint) if one is not NoneType)
        return _read_option(_find_reader(inner, rule))
    return _LAYOUTS.get(hint) or _find_plain_reader(hint, rule)


def _find_plain_reader(kind: type, rule: Between | Sized | None) -> Read:
    if isinstance(rule, Between):
        width = find_width(rule)
        return lambda body: body.take_number(width)
    assert isinstance(rule, Sized), "an annotation limits every number, text and key"
    if kind is str:
        return lambda body: body.take(rule.high).rstrip(b"\0").decode()
    return lambda body: body.take(rule.high)


def _find_list_reader(items: tuple[Any, ...], rule: Between | Sized | None) -> Read:
    if items[-1] is not Ellipsis:
        readers = [_find_reader(item) for item in items]
        return lambda body: tuple(read(body) for read in readers)
    assert isinstance(rule, Sized), "an annotation limits every list"
    return _read_entries(_find_reader(items[0]), rule)


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


def _find_readers(kind: type[Message]) -> list[tuple[str, Read]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, _find_reader(hints[field.name])) for field in fields(kind)]


_READERS: Final = {  # a tick's entropy is read from the chain, not from a body
    kind.type: (kind.name, _find_readers(kind.type)) for kind in KINDS if kind.type not in (WitnessMessage, Tick)
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
