"""Enumerative coding of sets of chunk positions: each set is one number, the shortest code of fixed length.

Within its size, a set of positions c_1 < c_2 < ... has the rank sum of C(c_j, j). Sets of size k come first, then those
of size k-1, and so on; the empty set is last. NumPy only.

Ranks have up to 128 bits and are held in two uint64 arrays, high and low.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import comb, factorial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.plan import MAX_SET_BITS, compute_set_bits, compute_sets
from psyche.errors import WireError
from psyche.modeling.distro.bits import (
    get_packed_bytes,
    is_padding_zero,
    iterate_blocks,
    pack_numbers,
    unpack_numbers,
)
from psyche.modeling.distro.compiled import find_coding

_WORD: Final = 1 << 64
_BLOCK_ROWS: Final = 4_096  # about ten arrays of this length fit into the L2 cache

Words = NDArray[np.uint64]
Positions = NDArray[np.int32]


def _split(numbers: list[int]) -> tuple[Words, Words]:
    high = np.array([n // _WORD for n in numbers], dtype=np.uint64)
    low = np.array([n % _WORD for n in numbers], dtype=np.uint64)
    return high, low


def _is_less(high: Words, low: Words, other_high: Words, other_low: Words) -> NDArray[np.bool_]:
    return (high < other_high) | ((high == other_high) & (low < other_low))


def _to_float(high: Words | None, low: Words) -> NDArray[np.float64]:
    rounded = low.astype(np.float64)
    if high is not None:
        rounded += np.ldexp(high.astype(np.float64), 64)
    return rounded


class EnumerativeCoder:
    """Codes sets of up to `topk` of `area` positions by their ranks; all methods work on whole arrays.

    Sets are int32 [chunks, topk], ascending; smaller sets are padded with `area`. A rank is cut into planes of 64, then
    16, then the remaining bits, lowest first (`core.encoding.plan`).
    """

    def __init__(self, area: int, topk: int) -> None:
        self.area = area
        self.topk = topk
        self.bits = compute_set_bits(area, topk)
        assert self.bits <= MAX_SET_BITS, "wider sets are coded by Elias-Fano"
        words, rest = divmod(self.bits, 64)
        self.planes = (64,) * words + (16,) * (rest // 16) + ((rest % 16,) if rest % 16 else ())
        self._count = compute_sets(area, topk)
        self._high, self._low = self._build_tables()
        # first[s] is the rank of the first set of size s.
        first = list(accumulate((comb(area, size) for size in range(topk, 0, -1)), initial=0))[::-1]
        self._first_high, self._first_low = _split(first)
        # For j up to this one, C(area, j) fits one word, and so does the rest of every rank at that step.
        self.narrow = next((j for j in range(topk) if comb(area, j + 1) >= _WORD), topk)

    def _build_tables(self) -> tuple[Words, Words]:
        """C(c, j) for j = 0..topk (rows) and c = 0..area (columns)."""
        row = [1] * (self.area + 1)
        rows = [_split(row)]
        for _ in range(self.topk):
            row = list(accumulate(row[:-1], initial=0))
            rows.append(_split(row))
        return np.stack([high for high, _ in rows]), np.stack([low for _, low in rows])

    def get_size_bytes(self, chunks: int) -> int:
        return get_packed_bytes(chunks * self.bits)

    @property
    def tables(self) -> tuple[Words, Words, Words, Words]:
        """C(c, j) and the first rank of each size, high and low words."""
        return self._high, self._low, self._first_high, self._first_low

    def encode(self, sets: Positions) -> Sequence[NDArray[np.uint8]]:
        """Encode sets as planes of their ranks."""
        if (coding := find_coding(sets.nbytes)) is not None:
            return self._make_planes(*coding.rank(self, sets))
        high = np.empty(sets.shape[0], dtype=np.uint64)
        low = np.empty(sets.shape[0], dtype=np.uint64)
        for block in iterate_blocks(sets.shape[0], _BLOCK_ROWS):
            high[block], low[block] = self.rank(sets[block])
        return self._make_planes(high, low)

    def decode(self, raw: NDArray[np.uint8], chunks: int) -> Positions:
        """The sets of a group, int32 [chunks, topk]."""
        return self._read(raw, chunks, chunks)[0]

    def check(self, raw: NDArray[np.uint8], chunks: int) -> NDArray[np.int64]:
        """The sizes of the sets, int64 [chunks], without decoding the sets."""
        return self._read(raw, chunks, 0)[1]

    def rank(self, sets: Positions) -> tuple[Words, Words]:
        """The high and low words of the sets' ranks, uint64 [chunks] each."""
        columns = np.ascontiguousarray(sets.T).astype(np.intp)
        present = columns < self.area
        is_full = bool(present.all())
        sizes = present.sum(axis=0)
        high, low = self._first_high[sizes], self._first_low[sizes]
        for j in range(1, self.topk + 1):
            step_low = self._low[j].take(columns[j - 1])
            step_high = self._high[j].take(columns[j - 1])
            if not is_full:
                step_low *= present[j - 1]
                step_high *= present[j - 1]
            low += step_low
            high += step_high
            high += low < step_low  # carry
        return high, low

    def unrank(self, high: Words, low: Words, sizes: NDArray[np.int64]) -> Positions:
        """The sets with these ranks, int32 [chunks, topk]; the ranks must be below the number of sets."""
        order = None
        if sizes.size and int(sizes.min()) < self.topk:
            # Sort rows by descending size, so that the rows of step j are the first ones.
            order = np.argsort(-sizes, kind="stable")
            high, low, sizes = high[order], low[order], sizes[order]
        first_low = self._first_low[sizes]
        high = high - self._first_high[sizes] - (low < first_low)
        low = low - first_low
        columns = np.full((self.topk, sizes.size), self.area, dtype=np.int32)
        for j in range(self.topk, 0, -1):
            rows = sizes.size if order is None else int(np.searchsorted(-sizes, -j, side="right"))
            columns[j - 1, :rows] = self._take_step(j, high[:rows], low[:rows])
        sets = np.empty((sizes.size, self.topk), dtype=np.int32)
        sets[slice(None) if order is None else order] = columns.T
        return sets

    def _take_step(self, j: int, high: Words, low: Words) -> NDArray[np.intp]:
        """The largest c with C(c, j) <= rank, int64 [rows]; subtracts C(c, j) from the ranks in place."""
        is_narrow = j <= self.narrow
        if j == 1:
            return low.astype(np.intp)
        estimated = self.estimate(j, _to_float(None if is_narrow else high, low))
        place = np.clip(estimated, j - 1, self.area - 1).astype(np.intp)
        self._settle(j, place, None if is_narrow else high, low)
        step_low = self._low[j].take(place)
        if not is_narrow:
            high -= self._high[j].take(place)
            high -= low < step_low  # borrow
        low -= step_low
        return place

    def estimate(self, j: int, rank: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the largest c with C(c, j) <= rank; it may be out of range.

        C(c, j) is a product of j factors around m = c - (j-1)/2, divided by j!, so c is near
        (j! rank)^(1/j) + (j-1)/2; the code adds the next term of that series. The lower bound j/4 matters only for
        rank 0.
        """
        root = np.power(rank * float(factorial(j)), 1.0 / j)
        np.maximum(root, j / 4, out=root)
        root += (j - 1) / 2 + (j * j - 1) / 24 / root
        return root

    def _settle(self, j: int, place: NDArray[np.intp], high: Words | None, low: Words) -> None:
        """Correct the estimates exactly, in place; this takes at most `area` steps, in practice one or two."""
        rows = np.flatnonzero(self._is_above(j, place, high, low))
        while rows.size:
            place[rows] -= 1
            rows = rows[self._is_above(j, place[rows], None if high is None else high[rows], low[rows])]
        rows = np.flatnonzero(~self._is_above(j, place + 1, high, low))
        while rows.size:
            place[rows] += 1
            rows = rows[~self._is_above(j, place[rows] + 1, None if high is None else high[rows], low[rows])]

    def _is_above(self, j: int, place: NDArray[np.intp], high: Words | None, low: Words) -> NDArray[np.bool_]:
        """Whether C(place, j) > rank; false at place j-1 and true at `area`, so the search ends there."""
        table_low = self._low[j].take(place)
        if high is None:
            return table_low > low
        return _is_less(high, low, self._high[j].take(place), table_low)

    def _make_planes(self, high: Words, low: Words) -> Sequence[NDArray[np.uint8]]:
        planes: list[NDArray[np.uint8]] = []
        at = 0
        for bits in self.planes:
            # If a rank has more than one word, its first plane is a whole word, so no plane straddles two words.
            rest = (high if at >= 64 else low) >> np.uint64(at % 64)
            planes.append(_pack_plane(rest, bits))
            at += bits
        return planes

    def _read(self, raw: NDArray[np.uint8], chunks: int, kept: int) -> tuple[Positions, NDArray[np.int64]]:
        """The first sets and the sizes of all; refuse bytes that no set encodes to."""
        assert raw.size == self.get_size_bytes(chunks), "the caller checks lengths"
        if not is_padding_zero(raw, chunks * self.bits):
            raise WireError("ranks: padding bits must be zero")
        sets, sizes = np.empty((kept, self.topk), dtype=np.int32), np.empty(chunks, dtype=np.int64)
        coding = find_coding(raw.size)
        if coding is not None and coding.decode_ranks(self, raw, self.planes, sets, sizes):
            return sets, sizes
        high, low = self._split_planes(raw, chunks)
        if self._count < 1 << MAX_SET_BITS:
            end_high, end_low = _split([self._count])
            if not _is_less(high, low, end_high, end_low).all():
                raise WireError(f"ranks: a rank is not below {self._count}, the number of sets")
        sizes = self._get_sizes(high, low)
        for block in iterate_blocks(kept, _BLOCK_ROWS):
            sets[block] = self.unrank(high[block], low[block], sizes[block])
        return sets, sizes

    def _split_planes(self, raw: NDArray[np.uint8], chunks: int) -> tuple[Words, Words]:
        high, low = np.zeros(chunks, dtype=np.uint64), np.zeros(chunks, dtype=np.uint64)
        at, offset = 0, 0
        for bits in self.planes:
            size = get_packed_bytes(chunks * bits)
            word = high if at >= 64 else low
            word |= _unpack_plane(raw[offset : offset + size], chunks, bits) << np.uint64(at % 64)
            at, offset = at + bits, offset + size
        return high, low

    def _get_sizes(self, high: Words, low: Words) -> NDArray[np.int64]:
        sizes = np.full(high.size, self.topk, dtype=np.int64)
        rows = np.arange(high.size)
        for size in range(self.topk - 1, -1, -1):
            first_high, first_low = self._first_high[size : size + 1], self._first_low[size : size + 1]
            rows = rows[~_is_less(high[rows], low[rows], first_high, first_low)]
            if not rows.size:
                break
            sizes[rows] = size
        return sizes


def _pack_plane(numbers: Words, bits: int) -> NDArray[np.uint8]:
    if bits in (16, 64):
        return numbers.astype(f"<u{bits // 8}", copy=False).view(np.uint8)
    return pack_numbers(numbers, bits)


def _unpack_plane(raw: NDArray[np.uint8], count: int, bits: int) -> Words:
    if bits in (16, 64):
        return raw.view(f"<u{bits // 8}").astype(np.uint64)
    return unpack_numbers(raw, count, bits)
