"""A computed shuffle: the new place of index i of a data set, without a list of all indexes.

A Feistel network over pairs (left, right) of numbers below ceil(sqrt(n)), keyed with 10 round keys, permutes slightly
more than n numbers. Results of n or more are permuted again until they are below n (cycle walking). Memory does not
grow with n, so a billion sequences cost as much as ten.
"""

import hashlib
import math
import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROUNDS: Final = 10
MAX_ITEMS: Final = 1 << 62  # left * side + right stays below 2^64
_TAG: Final = b"psyche/shuffle/1"
_MIX_A: Final = np.uint64(0xBF58476D1CE4E5B9)  # the finalizer of splitmix64
_MIX_B: Final = np.uint64(0x94D049BB133111EB)

U64Array = NDArray[np.uint64]


class Permutation:
    """A permutation of 0 to n-1 (n at most 2^62), the same on every machine for the same seed and pass."""

    def __init__(self, n: int, seed: bytes, pass_number: int) -> None:
        if not 1 <= n <= MAX_ITEMS:
            raise ValueError(f"n is {n}, must be 1 to {MAX_ITEMS}")
        self._n = np.uint64(n)
        self._side = np.uint64(math.isqrt(n - 1) + 1)
        material = hashlib.shake_256(_TAG + struct.pack("<Q", pass_number) + seed).digest(8 * ROUNDS)
        self._keys = np.frombuffer(material, dtype="<u8").astype(np.uint64)

    def permute(self, indexes: NDArray[np.integer]) -> U64Array:
        """Permute `indexes` (one dimension, each below n); uint64, same shape."""
        values = self._permute_pairs(np.asarray(indexes, dtype=np.uint64))
        while (outside := values >= self._n).any():
            values[outside] = self._permute_pairs(values[outside])
        return values

    def _permute_pairs(self, values: U64Array) -> U64Array:
        left, right = values // self._side, values % self._side
        for key in self._keys:
            left, right = right, (left + self._mix(right, key)) % self._side
        return left * self._side + right

    def _mix(self, values: U64Array, key: np.uint64) -> U64Array:
        """Mix value and key to a number below the side that depends on every bit of both."""
        mixed = values + key
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_A
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_B
        return (mixed ^ (mixed >> np.uint64(31))) % self._side
