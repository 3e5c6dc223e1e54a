"""What every event is: a frozen record, named by its class; and how it is written and read as plain data.

class RoundStarted(Event):      # type round_started
    epoch: int
    drain: bool = False         # left out of the line while it is False

Plain data is what JSON holds: bytes as hex, enumerations of numbers by their name in lower case and those of texts by
their text, numbers that are not finite as text.
"""

import functools
import logging
import math
import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, NamedTuple, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec

MAX_TEXT: Final = 4_000  # characters of one text field
MAX_START: Final = 1_000  # of a longer text its start, and the rest from its end: a traceback ends with the error
MAX_INTEGER: Final = 1 << 64
REQUIRED: Final = object()  # stands for the default of a field that has none
Hex = bytes  # as the log shows them; types have fields named `bytes`
Convert = Callable[[Any], Any]
INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _EventMeta(msgspec.StructMeta):
    """Makes every class below `Event` what the first one is, which msgspec and type checkers else leave to each."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, level: int = logging.DEBUG
    ) -> type:
        namespace["level"] = level
        # gc=False: no event refers to another, and a simulated run makes millions that the collector would visit.
        tag = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # round_started of RoundStarted
        return super().__new__(cls, name, bases, namespace, frozen=True, kw_only=True, gc=False, tag=tag)


class Event(msgspec.Struct, metaclass=_EventMeta):
    """Something that happened; a field with a default is left out of the line while it has that value.

    `level` is that of its log line. By default a user who watches one node sees what has INFO or more.
    """

    level: ClassVar[int]


class Unknown(Event):
    """An event of a type that this version does not know, or that lacks what the type has here."""

    name: str
    fields: dict[str, Any]


class Field(NamedTuple):
    """One field of a type. `to_plain` None: the value stands in the line as it is."""

    name: str
    default: Any
    to_plain: Convert | None
    from_plain: Convert


def get_type_name(event: Event | type[Event]) -> str:
    name = event.__struct_config__.tag
    assert isinstance(name, str), "Event gives every class one"
    return name


@functools.cache
def get_types() -> dict[str, type[Event]]:
    """The class of every type that is imported, by its name; `psyche.telemetry.types` imports all."""
    return {get_type_name(cls): cls for cls in Event.__subclasses__() if cls is not Unknown}


@functools.cache
def get_fields(cls: type[Event]) -> tuple[Field, ...]:
    hints = get_type_hints(cls)
    return tuple(
        Field(
            one.name, REQUIRED if one.default is msgspec.NODEFAULT else one.default, _get_writer(hints[one.name]),
            _get_reader(hints[one.name]),
        )
        for one in msgspec.structs.fields(cls)
    )  # fmt: skip


def fill_line(line: dict[str, Any], event: Event) -> None:
    """Add the type of an event to its line, and the fields, in order."""
    line["kind"] = get_type_name(event)
    for name, default, to_plain, _ in get_fields(type(event)):
        value = getattr(event, name)
        if default is REQUIRED or value != default:
            line[name] = value if to_plain is None else to_plain(value)


def get_plain_fields(event: Event) -> dict[str, Any]:
    """The fields of an event as they stand on the line, in order."""
    line: dict[str, Any] = {}
    fill_line(line, event)
    del line["kind"]
    return line


def read_plain(name: str, plain: Mapping[str, Any]) -> Event:
    """The event that such a line tells of; fields of later versions are passed over."""
    cls = get_types().get(name)
    if cls is None:
        return Unknown(name=name, fields=dict(plain))
    try:
        return cls(**{field: read(plain[field]) for field, read in _get_readers(cls) if field in plain})
    except (TypeError, ValueError, LookupError, OverflowError):  # a float of 400 digits overflows
        return Unknown(name=name, fields=dict(plain))


@functools.cache
def _get_readers(cls: type[Event]) -> tuple[tuple[str, Convert], ...]:
    return tuple((one.name, one.from_plain) for one in get_fields(cls))


# --- values ---------------------------------------------------------------------------------------------


def _get_writer(hint: Any) -> Convert | None:
    """What makes plain data of a value of this type; None: nothing has to."""
    if get_origin(hint) is UnionType:
        (inner,) = (_get_writer(one) for one in get_args(hint) if one is not NoneType)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if get_origin(hint) in (tuple, dict):
        item = _get_writer(get_args(hint)[-2 if get_origin(hint) is tuple else 1])
        each: Convert = item if item is not None else lambda value: value
        if get_origin(hint) is tuple:
            return list if item is None else lambda values: [each(value) for value in values]
        return lambda values: {str(name): each(value) for name, value in values.items()}
    if issubclass(hint, Enum):
        return str if issubclass(hint, str) else lambda value: value.name.lower()
    return {int: None, bool: None, float: _write_number, str: _write_text, bytes: bytes.hex}[hint]


def _write_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _write_text(value: str) -> str:
    if len(value) > MAX_TEXT:
        value = f"{value[:MAX_START]} ... {value[MAX_START + 5 - MAX_TEXT :]}"
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _get_reader(hint: Any) -> Convert:
    """What makes a value of this type of plain data; of anything else: ValueError, TypeError, LookupError."""
    origin = get_origin(hint)
    if origin is UnionType:
        (inner,) = (_get_reader(one) for one in get_args(hint) if one is not NoneType)
        return lambda plain: None if plain is None else inner(plain)
    if origin is tuple:
        if get_args(hint)[0] is int:
            return _read_integers
        item = _get_reader(get_args(hint)[0])
        return lambda plain: tuple(item(one) for one in _check(list, plain))
    if origin is dict:
        key, value = get_args(hint)
        read = _get_reader(value)
        return lambda plain: {key(name): read(one) for name, one in _check(dict, plain).items()}
    return _get_scalar_reader(hint)


def _get_scalar_reader(hint: Any) -> Convert:
    if issubclass(hint, Enum):
        return hint if issubclass(hint, str) else lambda plain: hint[_check(str, plain).upper()]
    if hint is bytes:
        return lambda plain: bytes.fromhex(_check(str, plain))
    readers: dict[type, Convert] = {float: _read_number, int: _read_integer}
    return readers.get(hint) or (lambda plain: _check(hint, plain))


def _read_integer(plain: Any) -> int:
    if type(plain) is not int:  # nor a bool, which isinstance takes for one
        raise TypeError(f"{plain!r} is no integer")
    if not -MAX_INTEGER < plain < MAX_INTEGER:
        raise OverflowError(f"{plain} is more than any field has")
    return plain


def _read_integers(plain: Any) -> tuple[int, ...]:
    """All at once: the members of a round are up to 256, in several events of each of them."""
    if _check(list, plain) and {*map(type, plain)} != {int}:
        raise TypeError(f"{plain!r} are no integers")
    for one in (min(plain, default=0), max(plain, default=0)):
        _read_integer(one)
    return tuple(plain)


def _read_number(plain: Any) -> float:
    if type(plain) is float:
        return plain
    return float(_check(str, plain) if isinstance(plain, str) else _check((int, float), plain))


def _check(expected: type | tuple[type, ...], plain: Any) -> Any:
    if not isinstance(plain, expected) or (isinstance(plain, bool) and expected is not bool):
        raise TypeError(f"{plain!r} is no {expected}")
    return plain
