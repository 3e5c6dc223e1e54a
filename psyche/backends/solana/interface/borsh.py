"""Borsh, the form of what programs read and write: values of the types that an IDL names, little-endian and packed.

Form            Value in Python               Bytes
u8 to u64, i64  int                           1 to 8
bool            bool                          1: 0 or 1
pubkey          Pubkey                        32
string, bytes   str, bytes                    their number as u32, then UTF-8 or the bytes
[u8; N]         bytes                         N
[T; N]          tuple                         N values
vec             tuple                         their number as u32, then the values
option          None or a value               0, or 1 and the value
struct          dict by field                 the fields in order

Whatever cannot be written or read raises a WireError that names the place, such as `join_run.expires_unix`, and the
rule. A length is checked against the bytes that are there before anything is allocated for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, NamedTuple, Protocol

from solders.pubkey import Pubkey

from psyche.core.encoding.reader import Reader
from psyche.errors import WireError

KEY_BYTES: Final = 32
_LENGTH_BYTES: Final = 4


class Encoded(NamedTuple):
    """A value whose bytes another codec has made: it is written as it is, once it reads as the form says."""

    raw: bytes


def _take_count(reader: Reader, least_bytes: int, where: str) -> int:
    """The number of entries that follow, each of at least so many bytes: they are there before any is made."""
    count = reader.take_number(_LENGTH_BYTES, where)
    if count * least_bytes > reader.left:
        raise reader.fail(f"{count} entries need {count * least_bytes} bytes, {reader.left} are left", where)
    return count


class BorshForm(Protocol):
    @property
    def least_bytes(self) -> int: ...

    def write(self, value: Any, where: str) -> bytes: ...

    def read(self, reader: Reader, where: str) -> Any: ...


def encode_value(form: BorshForm, value: Any, where: str) -> bytes:
    if not isinstance(value, Encoded):
        return form.write(value, where)
    decode_value(form, value.raw, where)
    return value.raw


def decode_value(form: BorshForm, raw: bytes, where: str, *, with_rest: bool = False) -> Any:
    """Read a value; `with_rest`: more may follow, as in accounts that are made for the longest value."""
    reader = Reader(raw)
    value = form.read(reader, where)
    if not with_rest:
        reader.finish(where)
    return value


def _check(value: Any, kind: type | UnionType, what: str, where: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"{where}: {str(value)[:40]!r} must be {what}")


@dataclass(frozen=True)
class NumberForm:
    least_bytes: int
    signed: bool = False

    def write(self, value: Any, where: str) -> bytes:
        bits = 8 * self.least_bytes
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.signed else (0, (1 << bits) - 1)
        _check(value, int, "an integer", where)
        if not low <= value <= high:
            raise WireError(f"{where}: {value} is not between {low} and {high}")
        return int(value).to_bytes(self.least_bytes, "little", signed=self.signed)

    def read(self, reader: Reader, where: str) -> int:
        return reader.take_number(self.least_bytes, where, signed=self.signed)


class BoolForm:
    least_bytes = 1

    def write(self, value: Any, where: str) -> bytes:
        _check(value, bool, "true or false", where)
        return bytes([value])

    def read(self, reader: Reader, where: str) -> bool:
        flag = reader.take_number(1, where)
        if flag > 1:
            raise WireError(f"{where}: {flag} is neither 0 nor 1")
        return bool(flag)


class KeyForm:
    least_bytes = KEY_BYTES

    def write(self, value: Any, where: str) -> bytes:
        _check(value, Pubkey, "a public key", where)
        return bytes(value)

    def read(self, reader: Reader, where: str) -> Pubkey:
        return Pubkey(reader.take(KEY_BYTES, where))


def _write_count(count: int, wanted: int | None, what: str, where: str) -> bytes:
    if wanted is None:
        return NumberForm(_LENGTH_BYTES).write(count, where)
    if count != wanted:
        raise WireError(f"{where}: {count} {what}, must be {wanted}")
    return b""


@dataclass(frozen=True)
class BytesForm:
    """Bytes; `count`: how many, where that is fixed and need not be written."""

    count: int | None = None

    @property
    def least_bytes(self) -> int:
        return _LENGTH_BYTES if self.count is None else self.count

    def write(self, value: Any, where: str) -> bytes:
        _check(value, bytes, "bytes", where)
        return _write_count(len(value), self.count, "bytes", where) + value

    def read(self, reader: Reader, where: str) -> bytes:
        return reader.take(_take_count(reader, 1, where) if self.count is None else self.count, where)


class TextForm(BytesForm):
    def write(self, value: Any, where: str) -> bytes:
        _check(value, str, "a text", where)
        try:
            return super().write(value.encode(), where)
        except UnicodeEncodeError as error:
            raise WireError(f"{where}: {value!a} has no UTF-8") from error

    def read(self, reader: Reader, where: str) -> Any:
        try:
            return super().read(reader, where).decode()
        except UnicodeDecodeError as error:
            raise WireError(f"{where}: is no UTF-8") from error


@dataclass(frozen=True)
class OptionForm:
    inner: BorshForm
    least_bytes = 1

    def write(self, value: Any, where: str) -> bytes:
        return b"\0" if value is None else b"\1" + encode_value(self.inner, value, where)

    def read(self, reader: Reader, where: str) -> Any:
        return self.inner.read(reader, where) if BoolForm().read(reader, where) else None


@dataclass(frozen=True)
class ListForm:
    """Several values of one type; `count`: how many, where that is fixed. Else one has at least one byte."""

    inner: BorshForm
    count: int | None = None

    @property
    def least_bytes(self) -> int:
        return _LENGTH_BYTES if self.count is None else self.count * self.inner.least_bytes

    def write(self, value: Any, where: str) -> bytes:
        _check(value, list | tuple, "a list", where)
        entries = (encode_value(self.inner, one, f"{where}[{place}]") for place, one in enumerate(value))
        return _write_count(len(value), self.count, "entries", where) + b"".join(entries)

    def read(self, reader: Reader, where: str) -> tuple[Any, ...]:
        count = _take_count(reader, self.inner.least_bytes, where) if self.count is None else self.count
        return tuple(self.inner.read(reader, f"{where}[{place}]") for place in range(count))


@dataclass(frozen=True)
class StructForm:
    fields: Mapping[str, BorshForm]

    @property
    def least_bytes(self) -> int:
        return sum(form.least_bytes for form in self.fields.values())

    def write(self, value: Any, where: str) -> bytes:
        _check(value, Mapping, "a mapping of fields", where)
        if missing := [name for name in self.fields if name not in value]:
            raise WireError(f"{where}: {', '.join(missing)} is missing")
        if unknown := [str(name) for name in value if name not in self.fields]:
            raise WireError(f"{where}: {', '.join(unknown)} is unknown; there are {', '.join(self.fields) or 'none'}")
        return b"".join(encode_value(form, value[name], f"{where}.{name}") for name, form in self.fields.items())

    def read(self, reader: Reader, where: str) -> dict[str, Any]:
        return {name: form.read(reader, f"{where}.{name}") for name, form in self.fields.items()}
