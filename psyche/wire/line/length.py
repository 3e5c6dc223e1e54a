"""What stands in front of every frame, whatever carries it: its length, u32 little-endian."""

import struct
from typing import Final

from psyche.errors import WireError

_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size


def pack_length(size_bytes: int) -> bytes:
    """The 4 bytes in front of a frame of this many."""
    return _LENGTH.pack(size_bytes)


def read_length(head: bytes | bytearray, max_bytes: int, what: str) -> int:
    """How many bytes follow the first 4 of `head`, judged before anything is allocated for them.

    Raises:
        WireError: more than `max_bytes`; `what` begins the message.
    """
    (size_bytes,) = _LENGTH.unpack_from(head)
    if size_bytes > max_bytes:
        raise WireError(f"{what}: {size_bytes} bytes announced, at most {max_bytes}")
    return int(size_bytes)
