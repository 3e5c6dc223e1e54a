"""Bitmaps of members: integers in memory, 32 little-endian bytes on record; bit i is member i."""

from collections.abc import Iterable
from typing import Final

from psyche.core.limits import MAX_CLIENTS
from psyche.errors import WireError

BITMAP_BYTES: Final = MAX_CLIENTS // 8


def get_members(bits: int) -> list[int]:
    """The members whose bits are set, ascending."""
    members: list[int] = []
    while bits:
        lowest = bits & -bits
        members.append(lowest.bit_length() - 1)
        bits ^= lowest
    return members


def compute_bits(members: Iterable[int]) -> int:
    """The bitmap with exactly these members set."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def to_bytes32(bits: int) -> bytes:
    """The 32 bytes of a bitmap: bit i is bit i mod 8 of byte i div 8."""
    assert 0 <= bits < 1 << MAX_CLIENTS, "a bitmap has one bit per possible member"
    return bits.to_bytes(BITMAP_BYTES, "little")


def from_bytes32(raw: bytes) -> int:
    """The bitmap that the bytes hold.

    Raises:
        WireError: not exactly 32 bytes.
    """
    if len(raw) != BITMAP_BYTES:
        raise WireError(f"bitmap: {len(raw)} bytes, must be {BITMAP_BYTES}")
    return int.from_bytes(raw, "little")
