"""Coordinator messages as bytes: the encoding for requests and journal, derived from `core.state.messages`.

A message is encoded as its number and a msgpack array of its fields in order. The limits of a field come from its
annotation, so that whatever decodes is safe to use; unknown trailing fields are ignored. Witness messages,
configurations and models keep the encoding of `core.encoding.account`.
"""

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from psyche.core.encoding.account import (
    decode_config,
    decode_model,
    decode_witness,
    encode_config,
    encode_model,
    encode_witness,
)
from psyche.core.rules.apply import KINDS, Kind
from psyche.core.state.messages import Between, Message, Sized, WitnessMessage
from psyche.core.state.state import Config, Model
from psyche.errors import WireError
from psyche.wire.access import ACCESS_KINDS, AccessKind, AccessMessage
from psyche.wire.msgpack import UNREADABLE

MAX_FIELDS_BYTES: Final = 8_000
AnyMessage: TypeAlias = Message | AccessMessage
AnyKind: TypeAlias = Kind | AccessKind
Convert: TypeAlias = Callable[[Any], Any]

_INT64_MAX: Final = (1 << 63) - 1
_PLACE: Final = re.compile(r" - at `\$\[(\d+)\](.*)`$")


class _Shape(NamedTuple):
    """How a value is encoded: its type on the wire, and the conversions to it and back."""

    type: Any
    to_wire: Convert
    from_wire: Convert


def _same(value: Any) -> Any:
    return value


def _by_layout(encode: Convert, decode: Convert) -> _Shape:
    return _Shape(Annotated[bytes, msgspec.Meta(max_length=MAX_FIELDS_BYTES)], encode, decode)


_LAYOUTS: Final[dict[type, _Shape]] = {
    WitnessMessage: _by_layout(encode_witness, decode_witness),
    Config: _by_layout(encode_config, decode_config),
    Model: _by_layout(encode_model, decode_model),
}


def _shape(hint: Any, rule: Between | Sized | None = None) -> _Shape:
    """Build the shape of an annotation; `rule` comes from the enclosing annotation."""
    if get_origin(hint) is Annotated:
        inner, rule = get_args(hint)[:2]
        return _shape(inner, rule)
    if isinstance(hint, type) and is_dataclass(hint):
        return _LAYOUTS.get(hint) or _shape_record(hint, rule)
    if get_origin(hint) is tuple:
        return _shape_tuple(get_args(hint), rule)
    if get_origin(hint) in (Union, UnionType):
        return _shape_union([one for one in get_args(hint) if one is not NoneType], rule)
    return _Shape(_restrict(hint, rule), _same, _same)


def _restrict(kind: Any, rule: Between | Sized | None) -> Any:
    """Annotate a type with its rule in msgspec's terms."""
    if rule is None:
        return kind
    if isinstance(rule, Between):
        high = rule.high if rule.high is not None and rule.high <= _INT64_MAX else None  # msgpack ends at 64 bits
        return Annotated[int, msgspec.Meta(ge=rule.low, le=high)]
    return Annotated[kind, msgspec.Meta(min_length=rule.low, max_length=rule.high)]


def _shape_union(choices: list[Any], rule: Between | Sized | None) -> _Shape:
    """Build the shape of an optional value; a union of several types crosses the wire as bytes."""
    if len(choices) > 1:
        return _shape(bytes, rule)
    one = _shape(choices[0], rule)

    def unless_none(convert: Convert) -> Convert:
        return lambda value: None if value is None else convert(value)

    return _Shape(one.type | None, unless_none(one.to_wire), unless_none(one.from_wire))


def _shape_tuple(items: tuple[Any, ...], rule: Between | Sized | None) -> _Shape:
    if len(items) == 2 and items[1] is Ellipsis:
        one = _shape(items[0])
        kind = _restrict(tuple[one.type, ...], rule)

        def convert_all(convert: Convert) -> Convert:
            return lambda values: tuple(map(convert, values))

        return _Shape(kind, convert_all(one.to_wire), convert_all(one.from_wire))
    return _Shape(tuple[tuple(_shape(item).type for item in items)], _same, _same)  # type: ignore[misc]


def _shape_record(record: type, rule: Between | Sized | None) -> _Shape:
    """Build the shape of a dataclass as the array of its fields; a rule on it applies to its text fields."""
    hints = get_type_hints(record, include_extras=True)
    shapes = {f.name: _shape_field(hints[f.name], rule) for f in fields(record)}
    kinds = [_get_definition(f, shapes[f.name]) for f in fields(record)]
    struct = msgspec.defstruct(record.__name__, kinds, array_like=True, frozen=True)

    def to_wire(value: Any) -> Any:
        return struct(*(shape.to_wire(getattr(value, name)) for name, shape in shapes.items()))

    def from_wire(value: Any) -> Any:
        return record(*(shape.from_wire(getattr(value, name)) for name, shape in shapes.items()))

    return _Shape(struct, to_wire, from_wire)


def _shape_field(hint: Any, rule: Between | Sized | None) -> _Shape:
    is_text = hint is str or hint == str | None
    return _shape(Annotated[hint, rule] if is_text and rule is not None else hint)


def _get_definition(field: Field[Any], shape: _Shape) -> Any:
    if field.default is MISSING:
        return field.name, shape.type
    return field.name, shape.type, shape.to_wire(field.default)


class _Codec:
    """Encodes and decodes the fields of one kind of message."""

    def __init__(self, kind: AnyKind) -> None:
        self._kind = kind
        self._is_whole = kind.type in _LAYOUTS  # the only field is the whole message
        self._shape = _shape(kind.type)
        wire_type = tuple[self._shape.type] if self._is_whole else self._shape.type  # pyright: ignore[reportInvalidTypeArguments]
        self._decoder = msgspec.msgpack.Decoder(wire_type)

    def encode(self, message: AnyMessage) -> bytes:
        """Encode the fields as a msgpack array."""
        value = self._shape.to_wire(message)
        return msgspec.msgpack.encode((value,) if self._is_whole else value)

    def decode(self, raw: bytes) -> AnyMessage:
        """Decode the fields.

        Raises:
            WireError: a field breaks a rule; the text names the message, the field and the rule.
        """
        try:
            value: Any = self._decoder.decode(raw)
        except UNREADABLE as error:
            raise WireError(self._name_field(str(error))) from error
        return self._shape.from_wire(value[0] if self._is_whole else value)

    def _name_field(self, problem: str) -> str:
        place = _PLACE.search(problem)
        names = [f.name for f in fields(self._kind.type)]
        if place is None or self._is_whole or int(place[1]) >= len(names):
            return f"{self._kind.name}: {problem}"
        return f"{self._kind.name}.{names[int(place[1])]}{place[2]}: {problem[: place.start()]}"


BY_NUMBER: Final[dict[int, AnyKind]] = {kind.number: kind for kind in (*KINDS, *ACCESS_KINDS)}
BY_TYPE: Final[dict[type, AnyKind]] = {kind.type: kind for kind in BY_NUMBER.values()}
_CODECS: Final = {number: _Codec(kind) for number, kind in BY_NUMBER.items()}


def get_kind(message: AnyMessage) -> AnyKind:
    """Return the kind of a message."""
    return BY_TYPE[type(message)]


def encode_fields(message: AnyMessage) -> bytes:
    """Encode the fields of a message, without its number.

    Raises:
        WireError: a value does not fit the layout of a witness message, a configuration or a model.
    """
    return _CODECS[get_kind(message).number].encode(message)


def decode_fields(number: int, raw: bytes) -> AnyMessage:
    """Decode the message with a number from its fields.

    Raises:
        WireError: no message has that number, or a field breaks its rule; the text names both.
    """
    codec = _CODECS.get(number)
    if codec is None:
        raise WireError(f"message: no message has the number {number}")
    return codec.decode(raw)
