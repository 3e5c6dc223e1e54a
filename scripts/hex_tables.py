"""Tables of messages, and examples of their bytes, for the pages of the documentation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.inspect import (
    BoolType,
    BytesType,
    FloatType,
    IntType,
    ListType,
    NoneType,
    StrType,
    StructType,
    TupleType,
    UnionType,
    VarTupleType,
    type_info,
)

from psyche.wire.line.length import pack_length

BYTES_PER_LINE: Final = 32
Part: TypeAlias = tuple[str, bytes]  # a name, and the bytes of this part of a message


def draw_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *rows)]


def draw_example(parts: Sequence[Part], whole: bytes) -> list[str]:
    """The bytes that the code makes, each part with its name.

    Raises:
        ValueError: the parts are not the bytes that the code makes.
    """
    if b"".join(part for _, part in parts) != whole:
        raise ValueError(f"the parts {[name for name, _ in parts]} are not the bytes of the code")
    width = max(len(name) for name, _ in parts)
    lines: list[str] = []
    for name, part in parts:
        rows = [part[i : i + BYTES_PER_LINE].hex() for i in range(0, len(part), BYTES_PER_LINE)]
        lines += [f"{label:<{width}}  {row}" for label, row in zip([name, *[""] * len(rows)], rows, strict=False)]
    return ["```text", *lines, "```"]


def split(value: object, name: str = "") -> list[Part]:
    """The msgpack of a value, field by field."""
    if not isinstance(value, msgspec.Struct):
        return [(name, msgspec.msgpack.encode(value))]
    tag, names = value.__struct_config__.tag, value.__struct_fields__
    parts = [split_head(len(names) + (tag is not None), name)]
    parts += [] if tag is None else [("type", msgspec.msgpack.encode(tag))]
    return parts + [part for field in names for part in split(getattr(value, field), field)]


def split_head(count: int, name: str = "") -> Part:
    """The beginning of a msgpack array of fewer than 16 fields."""
    return f"{name}: array of {count}" if name else f"array of {count}", bytes([0x90 + count])


def add_length(parts: Sequence[Part]) -> list[Part]:
    """The parts of a frame."""
    return [("length", pack_length(sum(len(part) for _, part in parts))), *parts]


def frame(body: bytes) -> bytes:
    """A message with its length before it."""
    return pack_length(len(body)) + body


def draw_frame(value: msgspec.Struct) -> list[str]:
    """A frame with one message."""
    return draw_example(add_length(split(value)), frame(msgspec.msgpack.encode(value)))


# --- types ----------------------------------------------------------------------------------------------


def describe_type(kind: Any) -> str:
    """Describe a field's msgpack type and its limits in words."""
    match kind:
        case BytesType():
            return describe_size("bin", kind.min_length, kind.max_length, "bytes")
        case StrType():
            return describe_size("str", kind.min_length, kind.max_length, "characters")
        case IntType():
            return describe_int(kind)
        case FloatType():
            return "float" if kind.le is None else f"float, {kind.ge} to {kind.le:g}"
        case StructType():
            return kind.cls.__name__
        case _:
            return describe_composed(kind)


def describe_int(kind: IntType) -> str:
    """Describe the range of an integer; the largest ones by their power of two."""
    most = kind.le if kind.le is not None else kind.lt and kind.lt - 1
    if most is None:
        return "int" if kind.ge is None else f"int, at least {kind.ge}"
    bits = most.bit_length()
    is_power = bits > 8 and most == (1 << bits) - 1
    return f"int, {kind.ge} to {f'2^{bits} - 1' if is_power else f'{most:,}'}"


def describe_composed(kind: Any) -> str:
    """Describe a union or an array."""
    match kind:
        case BoolType() | NoneType():
            return "bool" if isinstance(kind, BoolType) else "nil"
        case UnionType():
            return " or ".join(describe_type(one) for one in kind.types)
        case TupleType():
            return f"array ({', '.join(describe_type(one) for one in kind.item_types)})"
        case ListType() | VarTupleType():
            most = "" if kind.max_length is None else f" of at most {kind.max_length:,}"
            return f"array{most}: {describe_type(kind.item_type)}"
        case _:
            raise TypeError(f"{kind}: no words for it")


def describe_size(kind: str, low: int | None, high: int | None, unit: str) -> str:
    if low is not None and low == high:
        return f"{kind}, {low} {unit}"
    return kind if high is None else f"{kind}, at most {high:,} {unit}"


def get_fields(struct: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """The names and described types of a struct's fields, in order."""
    info: Any = type_info(struct)
    return [(field.name, describe_type(field.type)) for field in info.fields]


def draw_fields(struct: type[msgspec.Struct], rules: dict[str, str]) -> list[str]:
    """A table of a struct's fields; `rules` has what each means and must be.

    Raises:
        ValueError: the fields are others than `rules` knows.
    """
    found = get_fields(struct)
    if [name for name, _ in found] != list(rules):
        raise ValueError(f"{struct.__name__}: its fields are {[name for name, _ in found]}")
    return draw_table(("field, in order", "type", "rule"), [(f"`{n}`", kind, rules[n]) for n, kind in found])


def draw_kinds(
    kinds: Iterable[type[msgspec.Struct]], more: Mapping[str, Sequence[str]], head: Sequence[str]
) -> list[str]:
    """A table of tagged messages: tag, fields, and what else is to say of each."""
    rows: list[tuple[str, ...]] = []
    for kind in kinds:
        fields = "; ".join(f"{name}: {text}" for name, text in get_fields(kind)) or "none"
        rows.append((f"`{kind.__struct_config__.tag}`", fields, *more[kind.__name__]))
    return draw_table(head, rows)
