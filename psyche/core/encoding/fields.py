"""The kinds of fields of a fixed layout; `records` combines them.

All numbers are little-endian. Padding is explicit: every pad is a field and must be zero. A value that a field
accepts from the wire encodes back to the same bytes.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import partial
from math import isfinite
from typing import Any, Protocol

from psyche.core.state.bits import BITMAP_BYTES
from psyche.core.state.limits import HASH_BYTES
from psyche.errors import WireError


class Codec(Protocol):
    """A layout that can be nested as one field: `RecordLayout` or `TaggedLayout`."""

    size: int
    mask: bytes

    def write(self, value: Any) -> bytes: ...

    def read(self, raw: bytes) -> Any:
        """Decode `size` bytes; the caller checks the pads."""
        ...

    def locate(self, offset: int) -> str: ...


@dataclass(frozen=True)
class Field:
    """One field.

    `name` is the attribute's name, dotted for an attribute of an inner object. `code` is the struct format.
    `to_wire` and `from_wire` raise ValueError or OverflowError, which the record turns into a WireError that
    names the field. `is_later` marks the second of two fields of one attribute (a list after its length, a value
    after its presence byte); its `from_wire` also receives the value of the first.
    """

    name: str
    code: str
    to_wire: Callable[[Any], Any] | None = None
    from_wire: Callable[..., Any] | None = None
    is_later: bool = False
    is_pad: bool = False
    constant: int | bytes | None = None
    codec: Codec | None = None  # layout of one entry of a list or of a nested record
    mask: bytes = b""  # one bits where the field must be zero

    @property
    def size(self) -> int:
        return struct.calcsize("<" + self.code)

    def locate(self, offset: int) -> str:
        """The name of the (nested) field at a byte offset into this field."""
        if self.codec is None:
            return self.name
        entry, inside = divmod(offset, self.codec.size)
        index = f"[{entry}]" if self.size > self.codec.size else ""
        return f"{self.name}{index}.{self.codec.locate(inside)}"


u8, u16, u32, u64 = (partial(Field, code=code) for code in "BHIQ")


def up_to(limit: int, field: Field) -> Field:
    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"{value} is above the limit of {limit}")
        return value

    return Field(field.name, field.code, check, check)


def _check_finite(value: float) -> float:
    if not isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


# A float32 is the nearest one: round a value first if it must survive a round trip.
f32, f64 = (partial(Field, code=code, to_wire=_check_finite, from_wire=_check_finite) for code in "fd")


def f32_pair(name: str) -> Field:
    packed = struct.Struct("<ff")

    def to_wire(value: tuple[float, float]) -> bytes:
        return packed.pack(*map(_check_finite, value))

    def from_wire(value: bytes) -> tuple[float, float]:
        first, second = packed.unpack(value)
        return _check_finite(first), _check_finite(second)

    return Field(name, "8s", to_wire, from_wire)


def raw(name: str, size: int = HASH_BYTES) -> Field:
    def check(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError(f"{len(value)} bytes, must be {size}")
        return value

    return Field(name, f"{size}s", check)


def bitmap(name: str) -> Field:
    def to_wire(value: int) -> bytes:
        return value.to_bytes(BITMAP_BYTES, "little")

    def from_wire(value: bytes) -> int:
        return int.from_bytes(value, "little")

    return Field(name, f"{BITMAP_BYTES}s", to_wire, from_wire)


def fits_text(value: str, size: int) -> bool:
    """Whether a text fits a `text` field of `size` bytes: valid UTF-8 without NUL."""
    try:
        encoded = value.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return len(encoded) <= size and b"\0" not in encoded


def text(name: str, size: int) -> Field:
    """UTF-8 text of at most `size` bytes, padded with zeros; it contains no NUL."""

    def to_wire(value: str) -> bytes:
        encoded = value.encode("utf-8")
        if len(encoded) > size or b"\0" in encoded:
            raise ValueError(f"{len(encoded)} bytes of UTF-8, at most {size} and none of them zero")
        return encoded

    def from_wire(value: bytes) -> str:
        encoded = value.rstrip(b"\0")
        if b"\0" in encoded:
            raise ValueError("bytes after the end of the string are not zero")
        return encoded.decode("utf-8")

    return Field(name, f"{size}s", to_wire, from_wire)


def texts(name: str, size: int, capacity: int) -> Field:
    """A list of up to `capacity` texts of at most `size` bytes each (see `text`); the first empty text ends it."""
    one = text(name, size)
    assert one.to_wire is not None
    assert one.from_wire is not None
    write, read = one.to_wire, one.from_wire

    def to_wire(values: list[str]) -> bytes:
        if len(values) > capacity or not all(values):
            raise ValueError(f"{len(values)} texts, at most {capacity} and none of them empty")
        return b"".join(write(value).ljust(size, b"\0") for value in values)

    def from_wire(value: bytes) -> list[str]:
        found = [read(value[start : start + size]) for start in range(0, len(value), size)]
        length = next((i for i, entry in enumerate(found) if not entry), capacity)
        if any(found[length:]):
            raise ValueError(f"entries from {length} on are not zero")
        return found[:length]

    return Field(name, f"{size * capacity}s", to_wire, from_wire)


def boolean(name: str) -> Field:
    def from_wire(value: int) -> bool:
        if value > 1:
            raise ValueError(f"{value} is neither 0 nor 1")
        return value == 1

    return Field(name, "B", None, from_wire)


def enum(name: str, members: type[IntEnum], code: str = "B") -> Field:
    return _one_of(name, code, {int(member): member for member in members}, members.__name__)


def flags(name: str, members: type[IntFlag]) -> Field:
    """A byte of flags; unknown ones are refused."""
    known = sum(members)
    table = {value: members(value) for value in range(known + 1) if not value & ~known}
    return _one_of(name, "B", table, f"set of {members.__name__}")


def _one_of(name: str, code: str, table: dict[int, Any], kind: str) -> Field:
    def from_wire(value: int) -> Any:
        try:
            return table[value]
        except KeyError:
            raise ValueError(f"{value} is no {kind}") from None

    return Field(name, code, None, from_wire)


def pad(size: int) -> Field:
    return Field("pad", f"{size}x", is_pad=True, mask=b"\xff" * size)


def constant(name: str, code: str, value: int | bytes) -> Field:
    return Field(name, code, constant=value)


def nested(name: str, codec: Codec) -> Field:
    return Field(name, f"{codec.size}s", codec.write, codec.read, codec=codec, mask=codec.mask)


def count(name: str) -> Field:
    """The number of entries of the list `name`, as u16."""
    return Field(name, "H", len)


def _write_entries(codec: Codec, capacity: int, values: list[Any]) -> bytes:
    if len(values) > capacity:
        raise ValueError(f"{len(values)} entries, at most {capacity}")
    return b"".join(map(codec.write, values))  # struct fills the rest with zeros


def _read_entries(codec: Codec, raw_: bytes, length: int) -> list[Any]:
    used = length * codec.size
    if used > len(raw_):
        raise ValueError(f"{length} entries, at most {len(raw_) // codec.size}")
    if raw_[used:] != bytes(len(raw_) - used):
        raise ValueError(f"entries from {length} on are not zero")
    index = 0
    try:
        return [codec.read(raw_[(index := i) * codec.size : (i + 1) * codec.size]) for i in range(length)]
    except WireError as error:
        raise ValueError(f"entry {index}: {error}") from error


def entries(name: str, codec: Codec, capacity: int) -> Field:
    """A list of up to `capacity` records, after its length (`count`); unused entries are zero."""

    def to_wire(values: list[Any]) -> bytes:
        return _write_entries(codec, capacity, values)

    def from_wire(value: bytes, length: int) -> list[Any]:
        return _read_entries(codec, value, length)

    mask = codec.mask * capacity
    return Field(name, f"{len(mask)}s", to_wire, from_wire, is_later=True, codec=codec, mask=mask)


def exactly(name: str, codec: Codec, length: int) -> Field:
    def to_wire(values: list[Any]) -> bytes:
        if len(values) != length:
            raise ValueError(f"{len(values)} entries, must be {length}")
        return _write_entries(codec, length, values)

    def from_wire(value: bytes) -> list[Any]:
        return _read_entries(codec, value, length)

    mask = codec.mask * length
    return Field(name, f"{len(mask)}s", to_wire, from_wire, codec=codec, mask=mask)


def until_zero(name: str, codec: Codec, capacity: int) -> Field:
    """A list of up to `capacity` records; the first all-zero entry ends it, so no entry may be all zero."""
    zero = bytes(codec.size)

    def to_wire(values: list[Any]) -> bytes:
        written = _write_entries(codec, capacity, values)
        if _get_length(written) != len(values):
            raise ValueError("an entry is all zero, which would end the list")
        return written

    def from_wire(value: bytes) -> list[Any]:
        return _read_entries(codec, value, _get_length(value))

    def _get_length(value: bytes) -> int:
        starts = range(0, len(value), codec.size)
        return next((i for i, start in enumerate(starts) if value[start : start + codec.size] == zero), len(starts))

    mask = codec.mask * capacity
    return Field(name, f"{len(mask)}s", to_wire, from_wire, codec=codec, mask=mask)


def present(name: str, code: str = "B") -> Field:
    """The presence marker of an optional attribute: 1, or 0 for None."""
    return Field(name, code, lambda value: int(value is not None), boolean(name).from_wire)


def optional(field: Field) -> Field:
    """An optional value, after its `present` marker; all zero for None."""
    packed = struct.Struct("<" + field.code)
    to_inner, from_inner = field.to_wire or _same, field.from_wire or _same

    def to_wire(value: Any) -> bytes:
        return b"" if value is None else packed.pack(to_inner(value))

    def from_wire(value: bytes, is_present: bool) -> Any:
        if is_present:
            return from_inner(packed.unpack(value)[0])
        if any(value):
            raise ValueError("marked as absent, but its bytes are not zero")
        return None

    return Field(field.name, f"{packed.size}s", to_wire, from_wire, is_later=True)


def _same(value: Any) -> Any:
    return value
