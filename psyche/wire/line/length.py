"""The length prefix of every frame: u32 little-endian."""

import struct
from typing import Final

from psyche.errors import WireError

_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size


def pack_length(size_bytes: int) -> bytes:
    return _LENGTH.pack(size_bytes)


def read_length(head: bytes | bytearray, max_bytes: int, what: str) -> int:
    """Decode the frame length in the first 4 bytes of `head`, and check it before anything is allocated.

    Raises:
        WireError: the length is more than `max_bytes`; the message begins with `what`.
    """
    (size_bytes,) = _LENGTH.unpack_from(head)
    if size_bytes > max_bytes:
        raise WireError(f"{what}: {size_bytes} bytes announced, at most {max_bytes}")
    return int(size_bytes)
