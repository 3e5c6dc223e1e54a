"""Bloom filters of commitments, keyed per witness and round (`docs/protocol-reference.md`, W3).

Bit p of a filter is bit p mod 8 of byte p div 8; a filter has 2,560 bits in 320 bytes.
"""

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from psyche.core.state.limits import BLOOM_BITS, BLOOM_HASHES

BLOOM_TAG: Final = b"psyche/bloom/1"
BLOOM_BYTES: Final = BLOOM_BITS // 8
_WORDS: Final = struct.Struct(f"<{BLOOM_HASHES}I")


def compute_positions(seed32: bytes, witness: int, commitment: bytes) -> tuple[int, ...]:
    """The positions of the 7 bits that a commitment sets; some may coincide.

    `seed32` is the 32-byte seed of the round in which the witness (a member index) reports.
    """
    digest = _compute_digest(seed32, witness, commitment)
    return tuple(word * BLOOM_BITS >> 32 for word in _WORDS.unpack_from(digest))


def _compute_digest(seed32: bytes, witness: int, commitment: bytes) -> bytes:
    return hashlib.sha256(BLOOM_TAG + seed32 + witness.to_bytes(2, "little") + commitment).digest()


def _compute_mask(seed32: bytes, witness: int, commitment: bytes) -> int:
    mask = 0
    for position in compute_positions(seed32, witness, commitment):
        mask |= 1 << position
    return mask


def compute_bloom(seed32: bytes, witness: int, commitments: Iterable[bytes]) -> bytes:
    bits = 0
    for commitment in commitments:
        bits |= _compute_mask(seed32, witness, commitment)
    return bits.to_bytes(BLOOM_BYTES, "little")


def is_in_bloom(bloom: bytes, seed32: bytes, witness: int, commitment: bytes) -> bool:
    """Whether the filter may hold the commitment: false positives are possible, false negatives are not."""
    for word in _WORDS.unpack_from(
        _compute_digest(seed32, witness, commitment)
    ):  # inlines `compute_positions`: one decision makes up to 8,192 such tests
        position = word * BLOOM_BITS >> 32
        if not bloom[position >> 3] >> (position & 7) & 1:
            return False
    return True


def get_bit_count(bloom: bytes) -> int:
    return int.from_bytes(bloom, "little").bit_count()
