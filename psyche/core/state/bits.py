"""Bitmaps of members: integers in memory, 32 little-endian bytes on record; bit i stands for member i."""

from collections.abc import Iterable
from itertools import compress
from typing import Final

from psyche.core.state.limits import MAX_CLIENTS

BITMAP_BYTES: Final = MAX_CLIENTS // 8
_DIGITS: Final = bytes.maketrans(b"01", b"\0\1")


def get_members(bits: int) -> list[int]:
    digits = bin(bits)[:1:-1].encode().translate(_DIGITS)
    return list(compress(range(len(digits)), digits))


def compute_bits(members: Iterable[int]) -> int:
    """The bitmap in which exactly these members are set."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def to_bytes32(bits: int) -> bytes:
    """The 32 bytes of a bitmap: bit i is bit i mod 8 of byte i div 8."""
    assert 0 <= bits < 1 << MAX_CLIENTS, "a bitmap has one bit per possible member"
    return bits.to_bytes(BITMAP_BYTES, "little")


class BitCounter:
    """Counts, for every member, the bitmaps in which the member's bit is set.

    The counts are bit-sliced: plane k holds bit k of every member's count. Adding a bitmap takes a few operations
    on whole bitmaps, whatever the number of members.
    """

    def __init__(self) -> None:
        self._planes: list[int] = []

    def add(self, bits: int) -> None:
        carry = bits
        for k, plane in enumerate(self._planes):
            self._planes[k], carry = plane ^ carry, plane & carry
        if carry:
            self._planes.append(carry)

    def get_at_least(self, threshold: int) -> int:
        """Bitmap of the members that are set in at least `threshold` bitmaps; -1 (all bits) for a threshold of 0."""
        above, level = 0, -1  # from the highest bit down: counts above the threshold, counts equal to it so far
        for k in reversed(range(max(len(self._planes), threshold.bit_length()))):
            plane = self._planes[k] if k < len(self._planes) else 0
            if threshold >> k & 1:
                level &= plane
            else:
                above |= level & plane
        return above | level


def compute_at_least(bitmaps: Iterable[int], threshold: int, universe: int) -> int:
    """Bitmap of the members of `universe` whose bit is set in at least `threshold` of the bitmaps."""
    counter = BitCounter()
    for bits in bitmaps:
        counter.add(bits & universe)
    return counter.get_at_least(threshold) & universe
