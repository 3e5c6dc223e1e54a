"""Any value in a form that JSON can hold: for log lines of libraries, and for machine-readable status."""

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from psyche.telemetry.types.base import MAX_TEXT

_CONTAINERS: Final = (Mapping, list, tuple, deque, set, frozenset)


def get_plain(value: object) -> Any:
    """Convert a value for JSON: bytes as hex, enums by name, other objects as their text, cut at `MAX_TEXT`."""
    if isinstance(value, Enum):
        return value.name.lower() if value.name else value.value
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, _CONTAINERS):
        return _get_plain_scalar(value)
    if isinstance(value, Mapping):
        return {str(name): get_plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((get_plain(item) for item in value), key=str)
    return [get_plain(item) for item in value]


def _get_plain_scalar(value: object) -> float | str:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return str(value)[:MAX_TEXT].encode("utf-8", "replace").decode()
