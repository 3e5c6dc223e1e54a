"""What people are told about a key: unit, range, and one line with everything.

The messages of `psyche.config.explain`, the comments of `psyche init` and docs/configuration.md are made of this.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, cast, get_args, get_origin

import annotated_types
from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from psyche.config.table import format_limit
from psyche.config.values import ByteLimit

_LEAST: Final = ((annotated_types.Ge, "ge", ""), (annotated_types.Gt, "gt", "above "))
_MOST: Final = ((annotated_types.Le, "le", ""), (annotated_types.Lt, "lt", "below "))


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
    """One line: the meaning, then unit and range in parentheses."""
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
