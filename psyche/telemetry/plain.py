"""Any value in a form that JSON can hold: for log lines of libraries, and for machine-readable status."""

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from psyche.telemetry.types.base import MAX_TEXT


def get_plain(value: object) -> Any:
    """Convert a value for JSON: bytes as hex, enums by name, structs by field, others as text, cut at `MAX_TEXT`."""
    if isinstance(value, Enum):
        return value.name.lower() if value.name else value.value
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {str(name): get_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | deque | set | frozenset):
        items = map(get_plain, value)
        return sorted(items, key=str) if isinstance(value, set | frozenset) else list(items)
    return str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()
