"""The pseudorandom permutation behind elections and assignments: the swap-or-not shuffle.

It gives the position of a single index for a bounded number of hashes, and the whole order for few more.
"""

import hashlib
from functools import lru_cache
from typing import Final

from psyche.core.state.errors import InvalidCommitteeSelection
from psyche.core.state.limits import SHUFFLE_ROUNDS

_POSITIONS_PER_HASH: Final = 256


def _get_pivot(seed32: bytes, turn: int, n: int) -> int:
    digest = hashlib.sha256(seed32 + bytes([turn])).digest()
    return int.from_bytes(digest[:8], "little") % n


def _get_source(seed32: bytes, turn: int, block: int) -> int:
    """The 256 decision bits of a block of positions, as a little-endian integer."""
    raw = hashlib.sha256(seed32 + bytes([turn]) + block.to_bytes(4, "little")).digest()
    return int.from_bytes(raw, "little")


def permute(index: int, n: int, seed32: bytes) -> int:
    """The position of `index` in the permutation of `n` under a 32-byte seed: 90 swap-or-not rounds, 180 hashes.

    Raises:
        InvalidCommitteeSelection: `index` is not below `n`.
    """
    if not 0 <= index < n:
        raise InvalidCommitteeSelection(f"permutation: index {index} is not below {n}")
    current = index
    for turn in range(SHUFFLE_ROUNDS):
        flip = (_get_pivot(seed32, turn, n) + n - current) % n
        position = max(current, flip)
        source = _get_source(seed32, turn, position // _POSITIONS_PER_HASH)
        if source >> (position % _POSITIONS_PER_HASH) & 1:
            current = flip
    return current


@lru_cache(maxsize=128)
def compute_order(n: int, seed32: bytes) -> tuple[int, ...]:
    """The whole permutation: element p is the index that `permute` sends to position p.

    All indexes share the hashes of a round, so the order of 256 costs only as many hashes as one position.
    Every round is its own inverse, so pairs can be swapped in place.
    """
    order = list(range(n))
    for turn in range(SHUFFLE_ROUNDS if n else 0):
        pivot = _get_pivot(seed32, turn, n)
        blocks = range((n + _POSITIONS_PER_HASH - 1) // _POSITIONS_PER_HASH)
        sources = [_get_source(seed32, turn, block) for block in blocks]
        for position in range(n):
            flip = (pivot + n - position) % n
            if flip < position and sources[position // _POSITIONS_PER_HASH] >> (position % _POSITIONS_PER_HASH) & 1:
                order[position], order[flip] = order[flip], order[position]
    return tuple(order)
