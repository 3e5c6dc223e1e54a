"""The base class of all configuration tables, the declaration of a key, and what people are told about it.

A table of settings on record takes its keys from the core (`keys_of`); others declare them by `key`. The messages of
`psyche.config.explain`, the comments of `psyche init` and docs/configuration.md quote unit, range and meaning.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_args, get_origin

import annotated_types
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from psyche.config.values import F32, HASH_FORM, U8, U16, U32, U64, ByteLimit, Root, pick_variant
from psyche.core.state.settings import MOST, Key, get_keys

LARGE: Final = 1 << 32  # from here on, limits are written as powers of two
_LEAST: Final = ((annotated_types.Ge, "ge", ""), (annotated_types.Gt, "gt", "above "))
_MOST: Final = ((annotated_types.Le, "le", ""), (annotated_types.Lt, "lt", "below "))
_TYPES: Final[dict[str, Any]] = {
    "u8": U8, "u16": U16, "u32": U32, "u64": U64, "f32": F32, "f64": float, "bool": bool, "hash": Root,
    "f32 pair": Annotated[list[F32], Field(min_length=2, max_length=2), AfterValidator(tuple[float, float])],
}  # fmt: skip
_IN_WORDS: Final = {"f32": "at least 0", "f64": "at least 0", "hash": HASH_FORM}  # ranges of what is no whole number
_T = TypeVar("_T", bound="Table")


class Table(BaseModel):
    """A TOML table with strict types; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def key(meaning: str, *, unit: str = "", allowed: str = "", example: object = None, **options: Any) -> Any:
    """Declare a key of a table: its meaning, the unit of its number, and what is permitted, if less than its type has.

    `example` is a value for examples; None takes the default. `options` are those of pydantic's `Field`.
    """
    examples = None if example is None else [example]
    return Field(
        description=meaning, examples=examples, json_schema_extra={"unit": unit, "allowed": allowed}, **options
    )


def keys_of(record: type, names: Collection[str] = (), **others: tuple[Any, Any]) -> Callable[[type[_T]], type[_T]]:
    """Give a table the keys of a record of the core, in its order but needed ones first.

    With `names` only these keys: those of a variant, all needed but what the core can leave unset. `others` are fields
    that are no keys of the core, or are explained otherwise here: each its type and its `key(...)`.
    """
    kinds = {one.name: (one.type, one.default) for one in fields(record)}
    made = {
        name: _declare(one, *kinds[name], is_needed=one.is_needed or bool(names))
        for name, one in get_keys(record).items()
        if not names or name in names
    } | others

    def give(table: type[_T]) -> type[_T]:
        ordered: dict[str, Any] = dict(sorted(made.items(), key=lambda item: not item[1][1].is_required()))
        return create_model(table.__name__, __base__=table, __doc__=table.__doc__, **ordered)

    return give


def _declare(one: Key, kind: Any, default: object, *, is_needed: bool) -> tuple[Any, Any]:
    if one.width == "text":
        annotation: Any = Annotated[str, AfterValidator(ByteLimit(one.limit))]
    else:
        annotation = pick_variant(kind) if one.width == "enum" else _TYPES[one.width]
    allowed = one.allowed or _IN_WORDS.get(one.width, "")
    if not allowed and one.width in MOST and (one.least or one.not_below or one.most is not None):
        allowed = f"{one.not_below or format_limit(one.least)} to {format_limit(one.limit)}"
    options: dict[str, Any] = {"unit": one.unit, "allowed": allowed, "example": one.example}
    if default is None:
        return annotation | None, key(one.meaning, default=None, **options)
    return annotation, key(one.meaning, **options) if is_needed else key(one.meaning, default=default, **options)


def format_limit(number: float) -> str:
    """Write a limit as people read it: `65,535`, `2^32 - 1`."""
    if isinstance(number, int) and number + 1 >= LARGE and number & (number + 1) == 0:
        return f"2^{number.bit_length()} - 1"
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def get_unit(field: FieldInfo) -> str:
    """What the key's number counts, as in "seconds"; empty if it counts nothing."""
    return _get_declared(field, "unit")


def get_range(field: FieldInfo) -> str:
    """The permitted values in words: what the key declares, or else what its type permits; empty if all are."""
    if declared := _get_declared(field, "allowed"):
        return declared
    limits = list(_find_limits(field.annotation, field.metadata))
    size_bytes = next((limit.size_bytes for limit in limits if isinstance(limit, ByteLimit)), None)
    least_length = next((limit.min_length for limit in limits if isinstance(limit, annotated_types.MinLen)), 0)
    if size_bytes is not None:
        return f"1 to {size_bytes} bytes" if least_length else f"at most {size_bytes} bytes"
    return _format_limits({type(limit): limit for limit in limits})


def describe_key(field: FieldInfo) -> str:
    facts = ", ".join(filter(None, (get_unit(field), get_range(field))))
    return f"{field.description} ({facts})" if facts else field.description or ""


def _get_declared(field: FieldInfo, name: str) -> str:
    extra = field.json_schema_extra
    return str(cast("dict[str, Any]", extra).get(name, "")) if isinstance(extra, dict) else ""


def _find_limits(annotation: Any, metadata: list[Any]) -> Iterator[Any]:
    """The limits in a key's metadata, and in that of the types in its union."""
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from _find_limits(None, one.metadata)
        else:
            yield one.func if isinstance(one, AfterValidator) else one
    if get_origin(annotation) in (list, Literal):
        return  # a list's items have their own limits
    for inner in get_args(annotation):
        yield from _find_limits(inner, list(getattr(inner, "__metadata__", ())))


def _format_limits(limits: dict[type, Any]) -> str:
    def find(ends: tuple[tuple[type, str, str], ...]) -> str:
        return next(
            (word + format_limit(getattr(limits[kind], name)) for kind, name, word in ends if kind in limits), ""
        )

    least, most = find(_LEAST), find(_MOST)
    if least and most:
        return f"{least} to {most}"
    if least:
        return least if annotated_types.Gt in limits else f"at least {least}"
    return f"at most {most}" if most else ""
