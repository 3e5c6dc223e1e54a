"""Coordinator messages as bodies of instructions: the Borsh encoding, derived from `core.state.messages`.

A body holds the fields of a message in order, little-endian and packed. The annotation of a field gives its form:

- a number: 2, 4 or 8 bytes, as many as its highest value needs;
- bytes of a fixed length: these bytes; a text: its UTF-8, padded with zeros to the highest length;
- several of something: their number as u32, then each of them;
- a pair: one after the other;
- what may be None: a byte 0, or a byte 1 and the value;
- entropy: a byte 0 (not there yet), 1 (expired), or 2 and the hash;
- a configuration, a model and other parts of the record: their bytes in the record's layout.

A witness message is its bytes on every transport, `core.encoding.account.encode_witness`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from psyche.core.committee.seeds import EXPIRED, Entropy
from psyche.core.encoding.account import encode_config, encode_model, encode_witness
from psyche.core.encoding.fields import fits_text
from psyche.core.encoding.tables import CHECKPOINT, METADATA, PROGRESS
from psyche.core.rules.apply import KINDS
from psyche.core.state.limits import HASH_BYTES, U64_MAX
from psyche.core.state.messages import Between, Message, Sized, WitnessMessage
from psyche.core.state.state import Checkpoint, Config, Metadata, Model, Progress
from psyche.errors import WireError

Write: TypeAlias = Callable[[Any], bytes]
Form = TypeVar("Form")

_WIDTHS: Final = (2, 4, 8)
LENGTH_BYTES: Final = 4
_ABSENT, _PRESENT = b"\0", b"\1"


class Forms(NamedTuple, Generic[Form]):
    """How the parts of a body are written, or read: what `find_form` puts together by an annotation.

    Args:
        whole: values with a form of their own, by type.
        number, text, raw: a number in its bounds; a text of at most so many bytes; so many bytes.
        row, option, entries: one after the other; a value or None; several of something.
    """

    whole: Mapping[Any, Form]
    number: Callable[[Between], Form]
    text: Callable[[int], Form]
    raw: Callable[[int], Form]
    row: Callable[[Sequence[Form]], Form]
    option: Callable[[Form], Form]
    entries: Callable[[Form, Sized], Form]


def find_form(forms: Forms[Form], hint: Any, rule: Between | Sized | None = None) -> Form:
    """Find the form of an annotation; `rule` comes from the enclosing one."""
    if get_origin(hint) is Annotated:
        inner, rule = get_args(hint)[:2]
        return find_form(forms, inner, rule)
    if hint in forms.whole:
        return forms.whole[hint]
    if get_origin(hint) is tuple:
        return _find_list_form(forms, get_args(hint), rule)
    if get_origin(hint) in (Union, UnionType):
        (inner,) = (one for one in get_args(hint) if one is not NoneType)
        return forms.option(find_form(forms, inner, rule))
    return _find_plain_form(forms, hint, rule)


def _find_plain_form(forms: Forms[Form], kind: type, rule: Between | Sized | None) -> Form:
    if isinstance(rule, Between):
        return forms.number(rule)
    assert isinstance(rule, Sized), "an annotation limits every number, text and key"
    if kind is str:
        return forms.text(rule.high)
    assert rule.low == rule.high, "bytes have a fixed length"
    return forms.raw(rule.high)


def _find_list_form(forms: Forms[Form], items: tuple[Any, ...], rule: Between | Sized | None) -> Form:
    if items[-1] is not Ellipsis:
        return forms.row([find_form(forms, item) for item in items])
    assert isinstance(rule, Sized), "an annotation limits every list"
    return forms.entries(find_form(forms, items[0]), rule)


def find_field_forms(forms: Forms[Form], kind: type[Message]) -> list[tuple[str, Form]]:
    """The fields of a message in their order, each with its form."""
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, find_form(forms, hints[field.name])) for field in fields(kind)]


def find_width(rule: Between) -> int:
    """The bytes of a number: as many as its highest value needs."""
    high = U64_MAX if rule.high is None else rule.high
    return next(one for one in _WIDTHS if high < 1 << 8 * one)


def _write_number(rule: Between) -> Write:
    high, width = U64_MAX if rule.high is None else rule.high, find_width(rule)

    def write(value: int) -> bytes:
        if not rule.low <= value <= high:
            raise ValueError(f"{value} is not between {rule.low} and {high}")
        return value.to_bytes(width, "little")

    return write


def _write_raw(length: int) -> Write:
    def write(value: bytes) -> bytes:
        if len(value) != length:
            raise ValueError(f"{len(value)} bytes, must be {length}")
        return value

    return write


def _write_text(limit: int) -> Write:
    def write(value: str) -> bytes:
        if not fits_text(value, limit):
            raise ValueError(f"{value!a} must have at most {limit} bytes of UTF-8, without zero bytes")
        return value.encode().ljust(limit, b"\0")

    return write


def _write_row(writers: Sequence[Write]) -> Write:
    return lambda values: b"".join(write(value) for write, value in zip(writers, values, strict=True))


def _write_option(write: Write) -> Write:
    return lambda value: _ABSENT if value is None else _PRESENT + write(value)


def _write_entries(write: Write, rule: Sized) -> Write:
    def write_all(values: tuple[Any, ...]) -> bytes:
        if not rule.low <= len(values) <= rule.high:
            raise ValueError(f"{len(values)} entries, must be {rule.low} to {rule.high}")
        return len(values).to_bytes(LENGTH_BYTES, "little") + b"".join(map(write, values))

    return write_all


_write_hash: Final = _write_raw(HASH_BYTES)


def _write_entropy(value: Entropy) -> bytes:
    if value is None:
        return b"\0"
    return b"\1" if value is EXPIRED else b"\2" + _write_hash(value)


_FORMS: Final = Forms[Write](
    whole={
        Config: encode_config,
        Model: encode_model,
        Progress: PROGRESS.write,
        Metadata: METADATA.write,
        Checkpoint: CHECKPOINT.write,
        Entropy: _write_entropy,
    },
    number=_write_number,
    text=_write_text,
    raw=_write_raw,
    row=_write_row,
    option=_write_option,
    entries=_write_entries,
)
_WRITERS: Final = {
    kind.type: (kind.name, find_field_forms(_FORMS, kind.type)) for kind in KINDS if kind.type is not WitnessMessage
}


def encode_body(message: Message) -> bytes:
    """Write a message as the body of its instruction, without the discriminator.

    Raises:
        WireError: a value breaks the rule of its field; the text names message, field and rule.
    """
    if isinstance(message, WitnessMessage):
        return encode_witness(message)
    kind, writers = _WRITERS[type(message)]
    body, name = b"", ""
    try:
        for name, write in writers:
            body += write(getattr(message, name))
    except (ValueError, WireError) as error:
        raise WireError(f"{kind}.{name}: {error}") from error
    return body
