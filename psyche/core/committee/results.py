"""The Merkle root over the results that a witness holds (`docs/protocol-reference.md`, W2)."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from psyche.core.state.bits import get_members, to_bytes32
from psyche.core.state.state import ZERO32

RESULTS_TAG: Final = b"psyche/results/1"
_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"


def compute_leaf(item: bytes) -> bytes:
    return hashlib.sha256(_LEAF + item).digest()


@lru_cache(maxsize=4_096)  # the lists of 32 witnesses share most leaves and many inner nodes
def _compute_listed(member: int, commitment: bytes) -> bytes:
    return compute_leaf(member.to_bytes(2, "little") + commitment)


@lru_cache(maxsize=4_096)
def _compute_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def compute_merkle_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The Merkle root of leaf hashes: a level of odd length repeats its last node; no leaves give the zero root."""
    level = list(leaf_hashes)
    while len(level) > 1:
        level += level[-1:] * (len(level) % 2)
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [_compute_node(left, right) for left, right in pairs]
    return level[0] if level else ZERO32


def compute_results_root(epoch: int, attested_height: int, held: int, commitments: Mapping[int, bytes]) -> bytes:
    """The root of a list of results: SHA-256(tag | epoch | attested height | held | Merkle root).

    `commitments` maps each member that owed a payload to its commitment; members not in the bitmap `held`
    are left out. The root is zero if and only if `held` is empty.
    """
    if not held:
        return ZERO32
    owed = [member for member in get_members(held) if member in commitments]
    leaves = [_compute_listed(member, commitments[member]) for member in owed]
    head = RESULTS_TAG + struct.pack("<HI", epoch, attested_height)
    return hashlib.sha256(head + to_bytes32(held) + compute_merkle_root(leaves)).digest()
