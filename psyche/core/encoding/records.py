"""Records of a fixed layout: one ordered list of fields defines both encoding and decoding.

A `RecordLayout` stores one dataclass in one `struct` format. A `TaggedLayout` stores a dataclass whose `kind`, a
leading u32, says which of its fields are stored. Bytes that decode encode back to the same bytes, and a value that
encodes decodes to an equal value.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from enum import IntEnum
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar

from psyche.core.encoding.fields import Field
from psyche.errors import WireError

T = TypeVar("T")

ALIGNMENT: Final = {"Q": 8, "d": 8, "I": 4, "f": 4, "H": 2}
_TAG: Final = struct.Struct("<I")


class FieldLayout:
    """Consecutive fields in one struct format; `base` is the offset of the first, for the alignment check."""

    def __init__(self, label: str, fields: Sequence[Field], *, base: int = 0, is_aligned: bool = True) -> None:
        self.label = label
        self.fields = tuple(fields)
        self.struct = struct.Struct("<" + "".join(field.code for field in fields))
        self.size = self.struct.size
        self.mask = b"".join(field.mask or bytes(field.size) for field in fields)
        self._mask = int.from_bytes(self.mask, "little")
        assert not is_aligned or self._is_aligned(base), f"{label}: every number lies at a multiple of its size"
        stored = [field for field in fields if not field.is_pad]
        self._stored = stored
        self._names = tuple(field.name for field in stored if field.constant is None)
        self.places = {field.name: place for place, field in enumerate(stored) if field.constant is None}
        self._writers = [(i, field.to_wire) for i, field in enumerate(stored) if field.to_wire]
        self._readers = [
            (i, field.from_wire) for i, field in enumerate(stored) if field.from_wire and not field.is_later
        ]
        self._later = [(i, self._get_first(i), field.from_wire) for i, field in enumerate(stored) if field.is_later]
        self._constants = [(i, field.constant) for i, field in enumerate(stored) if field.constant is not None]
        self._get = _make_getter(self._names)

    def _get_first(self, later: int) -> int:
        """The place of the field that the later field of the same name depends on (its length or presence)."""
        return next(i for i, field in enumerate(self._stored) if field.name == self._stored[later].name)

    def _is_aligned(self, base: int) -> bool:
        offsets = accumulate((field.size for field in self.fields), initial=base)
        return all(
            offset % ALIGNMENT.get(field.code, 1) == 0 for field, offset in zip(self.fields, offsets, strict=False)
        )

    def write(self, value: object) -> bytes:
        """Encode an object's attributes.

        Raises:
            WireError: a field cannot hold its value; the message names it.
        """
        values = [*self._get(value)]
        for place, given in self._constants:
            values.insert(place, given)
        place = 0
        try:
            for place, convert in self._writers:
                values[place] = convert(values[place])
        except (ValueError, OverflowError) as error:
            raise self._fail(place, error) from error
        try:
            return self.struct.pack(*values)
        except (struct.error, OverflowError) as error:
            raise self._find_unfit(values, error) from error

    def _fail(self, place: int, reason: object) -> WireError:
        return WireError(f"{self.label}.{self._stored[place].name}: {reason}")

    def _find_unfit(self, values: list[Any], error: Exception) -> WireError:
        place = next(i for i, field in enumerate(self._stored) if not _is_packable(field.code, values[i]))
        return self._fail(place, f"{values[place]!r} does not fit ({error})")

    def read_values(self, raw: bytes) -> list[Any]:
        """The converted values of the stored fields; pads are not checked.

        Raises:
            WireError: a field holds no valid value; the message names it.
        """
        values: list[Any] = list(self.struct.unpack(raw))
        place = 0
        try:
            for place, convert in self._readers:
                values[place] = convert(values[place])
            for place, first, convert_later in self._later:
                assert convert_later is not None
                values[place] = convert_later(values[place], values[first])
        except ValueError as error:
            raise self._fail(place, error) from error
        for place, expected in self._constants:
            if values[place] != expected:
                raise self._fail(place, f"{values[place]!r} instead of {expected!r}")
        return values

    def check_pads(self, raw: bytes) -> None:
        """Refuse a pad or reserve that is not zero, in this record or a nested one.

        Raises:
            WireError: there is one; the message names field and byte.
        """
        set_bits = int.from_bytes(raw, "little") & self._mask
        if set_bits:
            offset = ((set_bits & -set_bits).bit_length() - 1) // 8
            raise WireError(f"{self.label}.{self.locate(offset)}: byte {offset} is not zero")

    def locate(self, offset: int) -> str:
        """The dotted name of the field at a byte offset, nested fields included."""
        for field in self.fields:
            if offset < field.size:
                return field.locate(offset)
            offset -= field.size
        raise AssertionError("an offset lies within the record")


def _is_packable(code: str, value: object) -> bool:
    try:
        struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        return False
    return True


def _make_getter(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    """Like `attrgetter`, but the getter always returns a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(attrgetter(name)(value) for name in names)


class RecordLayout(FieldLayout, Generic[T]):
    """The fixed layout of a dataclass; each of its attributes is a field.

    `inner` maps an attribute to its dataclass if the attributes of that dataclass are fields of this record,
    under dotted names.
    """

    def __init__(self, cls: type[T], fields: Sequence[Field], inner: Mapping[str, type] | None = None) -> None:
        super().__init__(cls.__name__, fields)
        places, built = dict(self.places), dict(inner or {})
        self._inner = [(inside, itemgetter(*_get_places(inside, places, name + "."))) for name, inside in built.items()]
        self._cls: Callable[..., T] = cls
        places |= {name: len(self._stored) + i for i, name in enumerate(built)}
        self._arrange = itemgetter(*_get_places(cls, places, ""))

    def read(self, raw: bytes) -> T:
        """Decode the object; pads are not checked (`decode` checks them)."""
        values = self.read_values(raw)
        for cls, arrange in self._inner:
            values.append(cls(*arrange(values)))
        return self._cls(*self._arrange(values))

    def decode(self, raw: bytes) -> T:
        """Decode the object from exactly `size` bytes.

        Raises:
            WireError: the length is wrong, a pad is not zero, or a value is invalid; the message names the field.
        """
        if len(raw) != self.size:
            raise WireError(f"{self.label}: {len(raw)} bytes, must be {self.size}")
        self.check_pads(raw)
        return self.read(raw)


def _get_places(cls: type, places: Mapping[str, int], prefix: str) -> list[int]:
    """The places of a dataclass's arguments among the values, in argument order."""
    names = [prefix + field.name for field in dataclass_fields(cls)]
    known = {name for name in places if name.startswith(prefix) and "." not in name[len(prefix) :]}
    assert known == set(names), f"{cls.__name__}: fields {known ^ set(names)} are missing or unknown"
    return [places[name] for name in names]


class TaggedLayout(Generic[T]):
    """The layout of a dataclass whose `kind` says which other attributes are stored; the rest of `size` is zero."""

    def __init__(self, cls: type[T], kinds: type[IntEnum], size: int, variants: Mapping[Any, Sequence[Field]]) -> None:
        assert set(variants) == set(kinds), f"{cls.__name__}: every kind has its fields"
        self.label = cls.__name__
        self.size = size
        self.mask = bytes(size)  # the pads depend on the kind, so `read` checks them
        self._cls: Callable[..., T] = cls
        self.variants = {
            int(kind): FieldLayout(f"{self.label} {kind.name}", fields, base=_TAG.size)
            for kind, fields in variants.items()
        }
        longest = max(one.size for one in self.variants.values())
        assert _TAG.size + longest <= size, f"{self.label}: a variant is too long"
        self._kinds = {int(kind): kind for kind in kinds}
        names = {field.name for field in dataclass_fields(cls)} - {"kind"}  # pyright: ignore[reportArgumentType]
        self._unused = {kind: tuple(names - set(one.places)) for kind, one in self.variants.items()}

    def write(self, value: Any) -> bytes:
        """Encode a value in `size` bytes.

        Raises:
            WireError: a field cannot hold its value, or an attribute is set that this kind does not have; the
                message names it.
        """
        variant, default = self.variants[value.kind], self._cls()
        for name in self._unused[value.kind]:
            if getattr(value, name) != getattr(default, name):
                raise WireError(f"{variant.label}: has no {name}, but it is set")
        return (_TAG.pack(value.kind) + variant.write(value)).ljust(self.size, b"\0")

    def read(self, raw: bytes) -> T:
        """Decode a value from `size` bytes.

        Raises:
            WireError: the kind is unknown, a value is invalid, or a byte that this kind does not use is not zero;
                the message names the field.
        """
        kind = _TAG.unpack_from(raw)[0]
        variant = self.variants.get(kind)
        if variant is None:
            raise WireError(f"{self.label}.kind: {kind} is unknown")
        end = _TAG.size + variant.size
        variant.check_pads(raw[_TAG.size : end])
        if raw[end:] != bytes(self.size - end):
            raise WireError(f"{variant.label}: bytes after its last field are not zero")
        values = variant.read_values(raw[_TAG.size : end])
        return self._cls(self._kinds[kind], **{name: values[place] for name, place in variant.places.items()})

    def locate(self, offset: int) -> str:
        """The name of a byte; the field it belongs to depends on the kind."""
        return f"byte {offset}"
