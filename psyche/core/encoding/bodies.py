"""Messages as bytes: one body for a server's request and journal, and for an instruction on a chain.

A body holds the fields of a message in order, little-endian and without pads, as Borsh does. Programs on a chain read
it, so a form never changes. The annotation of a field (`core.state.messages`) gives its form:

- a number: 2, 4, 8 or 32 bytes, as many as its highest value needs; a set of flags: a byte;
- bytes of a fixed length: these bytes; other bytes: their length as u32, then they;
- a text: its UTF-8, padded with zeros to the highest length;
- several of something: their number as u32, then each of them; a pair: one after the other;
- what may be None: a byte 0, or a byte 1 and the value;
- entropy: a byte 0 (not there yet), 1 (expired), or 2 and the hash;
- a configuration, a model and other parts of the record: their bytes in the record's layout.

What decodes keeps the limits of its annotations, and encodes back to the same bytes.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.fields import Field, flags, text
from psyche.core.encoding.reader import Reader
from psyche.core.encoding.records import RecordLayout
from psyche.core.encoding.tables import CHECKPOINT, CONFIG, METADATA, MODEL, PROGRESS
from psyche.core.state.limits import HASH_BYTES, U64_MAX
from psyche.core.state.messages import Between, Sized
from psyche.core.state.state import Checkpoint, Config, Metadata, Model, Progress
from psyche.errors import WireError

M = TypeVar("M")

_WIDTHS: Final = (2, 4, 8, 32)
_LENGTH_BYTES: Final = 4
_ABSENT, _PRESENT = b"\0", b"\1"


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value is written and read; both raise ValueError, OverflowError, struct.error or WireError."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def _check_length(length: int, rule: Sized, what: str) -> int:
    if not rule.low <= length <= rule.high:
        limits = f"{rule.low}" if rule.low == rule.high else f"{rule.low} to {rule.high}"
        raise ValueError(f"{length} {what}, must be {limits}")
    return length


def _take_length(body: Reader, rule: Sized, what: str) -> int:
    return _check_length(body.take_number(_LENGTH_BYTES), rule, what)


def _number(rule: Between) -> _Form:
    high = U64_MAX if rule.high is None else rule.high
    width = next(one for one in _WIDTHS if high < 1 << 8 * one)

    def check(value: int) -> int:
        if not rule.low <= value <= high:
            raise ValueError(f"{value} is not between {rule.low} and {high}")
        return value

    return _Form(lambda value: check(value).to_bytes(width, "little"), lambda body: check(body.take_number(width)))


def _raw(rule: Sized) -> _Form:
    is_fixed = rule.low == rule.high

    def write(value: bytes) -> bytes:
        length = _check_length(len(value), rule, "bytes")
        return value if is_fixed else length.to_bytes(_LENGTH_BYTES, "little") + value

    return _Form(write, lambda body: body.take(rule.high if is_fixed else _take_length(body, rule, "bytes")))


def _field(field: Field) -> _Form:
    packed = struct.Struct("<" + field.code)  # which fills a text with zeros
    to_wire, from_wire = field.to_wire, field.from_wire
    assert from_wire is not None, "texts and flags have rules"

    def write(value: Any) -> bytes:
        return packed.pack(value if to_wire is None else to_wire(value))

    return _Form(write, lambda body: from_wire(packed.unpack(body.take(packed.size))[0]))


def _row(forms: Sequence[_Form]) -> _Form:
    return _Form(
        lambda values: b"".join(form.write(value) for form, value in zip(forms, values, strict=True)),
        lambda body: tuple(form.read(body) for form in forms),
    )


def _option(form: _Form) -> _Form:
    def read(body: Reader) -> Any:
        tag = body.take(1)
        if tag not in (_ABSENT, _PRESENT):
            raise ValueError(f"{tag[0]} is neither 0 nor 1")
        return form.read(body) if tag == _PRESENT else None

    return _Form(lambda value: _ABSENT if value is None else _PRESENT + form.write(value), read)


def _entries(form: _Form, rule: Sized) -> _Form:
    def write(values: tuple[Any, ...]) -> bytes:
        length = _check_length(len(values), rule, "entries")
        return length.to_bytes(_LENGTH_BYTES, "little") + b"".join(map(form.write, values))

    return _Form(write, lambda body: tuple(form.read(body) for _ in range(_take_length(body, rule, "entries"))))


def _write_entropy(value: Entropy) -> bytes:
    if isinstance(value, bytes):
        _check_length(len(value), Sized(HASH_BYTES, HASH_BYTES), "bytes")
        return b"\2" + value
    return b"\1" if value is EXPIRED else b"\0"


def _read_entropy(body: Reader) -> Entropy:
    tag = body.take_number(1)
    if tag > 2:  # the third of three
        raise ValueError(f"{tag} is none of 0, 1 and 2")
    return body.take(HASH_BYTES) if tag == 2 else EXPIRED if tag else None


def _whole(layout: RecordLayout[Any]) -> _Form:
    return _Form(layout.write, lambda body: layout.decode(body.take(layout.size)))


_WHOLE: Final[dict[Any, _Form]] = {
    Config: _whole(CONFIG),
    Model: _whole(MODEL),
    Progress: _whole(PROGRESS),
    Metadata: _whole(METADATA),
    Checkpoint: _Form(CHECKPOINT.write, lambda body: CHECKPOINT.read(body.take(CHECKPOINT.size))),
    Entropy: _Form(_write_entropy, _read_entropy),
}


def _find_form(hint: Any, rule: Between | Sized | None = None) -> _Form:
    """The form of an annotation; `rule` comes from the enclosing one."""
    if get_origin(hint) is Annotated:
        return _find_form(*get_args(hint)[:2])
    if hint in _WHOLE:
        return _WHOLE[hint]
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (one for one in get_args(hint) if one is not NoneType)
        return _option(_find_form(inner, rule))
    if get_origin(hint) is not tuple:
        return _find_plain_form(hint, rule)
    items = get_args(hint)
    if items[-1] is not Ellipsis:
        return _row([_find_form(item) for item in items])
    assert isinstance(rule, Sized), "an annotation limits every list"
    return _entries(_find_form(items[0]), rule)


def _find_plain_form(kind: type, rule: Between | Sized | None) -> _Form:
    if issubclass(kind, IntFlag):
        return _field(flags("", kind))
    if isinstance(rule, Between):
        return _number(rule)
    assert isinstance(rule, Sized), "an annotation limits every number, text and key"
    return _field(text("", rule.high)) if kind is str else _raw(rule)


@cache
def _find_forms(kind: type) -> dict[str, _Form]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _find_form(hints[field.name]) for field in fields(kind)}


def split_body(message: object) -> list[tuple[str, bytes]]:
    """The fields of a message in their order, each with its bytes.

    Raises:
        WireError: a value breaks the rule of its field; the text names message, field and rule.
    """
    kind, parts, name = type(message), list[tuple[str, bytes]](), ""
    try:
        for name, form in _find_forms(kind).items():
            parts.append((name, form.write(getattr(message, name))))
    except (ValueError, OverflowError, struct.error, WireError) as error:
        raise WireError(f"{kind.__name__}.{name}: {error}") from error
    return parts


def encode_body(message: object) -> bytes:
    """Encode the fields of a message; raises as `split_body`."""
    return b"".join(raw for _, raw in split_body(message))


def decode_body(kind: type[M], raw: bytes) -> M:
    """Decode a message of this kind.

    Raises:
        WireError: a field breaks its rule, or the length is wrong; the text names message, field and rule.
    """
    body, values, name = Reader(raw), dict[str, Any](), ""
    try:
        for name, form in _find_forms(kind).items():
            values[name] = form.read(body)
    except (ValueError, WireError) as error:
        raise WireError(f"{kind.__name__}.{name}: {error}") from error
    body.finish(kind.__name__)
    make: Callable[..., M] = kind
    return make(**values)
