"""The root over the results that a witness holds (`docs/protocol-reference.md`, W2)."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from psyche.core.bits import get_members, to_bytes32
from psyche.core.state import ZERO32

RESULTS_TAG: Final = b"psyche/results/1"
_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"


def compute_leaf(item: bytes) -> bytes:
    """The hash of one leaf of the tree."""
    return hashlib.sha256(_LEAF + item).digest()


def compute_merkle_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The root over leaf hashes: an odd level repeats its last node; without leaves it is zero."""
    level = list(leaf_hashes)
    while len(level) > 1:
        level += level[-1:] * (len(level) % 2)
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [hashlib.sha256(_NODE + left + right).digest() for left, right in pairs]
    return level[0] if level else ZERO32


def compute_results_root(epoch: int, attested_height: int, held: int, commitments: Mapping[int, bytes]) -> bytes:
    """The root of a list of results: SHA-256(tag | epoch | attested height | held | Merkle root).

    `commitments` maps members that owed a payload to its commitment; it may hold more members than
    `held`, those are left out. Zero iff nobody is held.
    """
    if not held:
        return ZERO32
    owed = [member for member in get_members(held) if member in commitments]
    leaves = [compute_leaf(member.to_bytes(2, "little") + commitments[member]) for member in owed]
    head = RESULTS_TAG + struct.pack("<HI", epoch, attested_height)
    return hashlib.sha256(head + to_bytes32(held) + compute_merkle_root(leaves)).digest()
