"""Events of which a test gives only the fields that matter, and sinks that keep events.

log.emit(make(types.Trained, height=3, loss=2.5))
assert sink.get(types.ClientEnded)[0].code == 1
"""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from kits.log import E


def make(kind: type[E], **given: object) -> E:
    """An event with these fields; the other required fields are zero, empty or the first value of their type."""
    hints = get_type_hints(kind)
    fields = msgspec.structs.fields(kind)
    blank = {one.name: _make_blank(hints[one.name]) for one in fields if one.default is msgspec.NODEFAULT}
    return kind(**(blank | given))


def _make_blank(hint: Any) -> Any:
    if get_origin(hint) is UnionType:
        return None if NoneType in get_args(hint) else _make_blank(get_args(hint)[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    return (get_origin(hint) or hint)()
