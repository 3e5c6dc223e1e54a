"""Elias-Fano coding of sets of chunk positions, for sets whose rank would need more than 128 bits.

Per chunk it stores the low bits of each position, and a row of bits in which the j-th position with high part q sets
bit q + j. Unused low parts are zero, so equal sets have equal bytes. NumPy only.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.errors import WireError
from psyche.modeling.distro.bits import (
    get_bytes_of,
    get_packed_bytes,
    is_padding_zero,
    iterate_blocks,
    pack_rows,
    unpack_rows,
)
from psyche.modeling.distro.compiled import find_coding

_BLOCK_BITS: Final = 1 << 21  # bits of a block; unpacked they take a byte each


class EliasFanoCoder:
    """Codes sets of up to `topk` of `area` positions; all methods work on whole arrays.

    Sets are int32 [chunks, topk], ascending; smaller sets are padded with `area`.
    """

    def __init__(self, area: int, topk: int, low_bits: int, row_bits: int) -> None:
        self.area = area
        self.topk = topk
        self.low_bits = low_bits
        self.row_bits = row_bits
        self._block = max(8, _BLOCK_BITS // max(self.row_bits, topk * self.low_bits) // 8 * 8)

    def get_size_bytes(self, chunks: int) -> int:
        return get_packed_bytes(chunks * self.topk * self.low_bits) + get_packed_bytes(chunks * self.row_bits)

    def encode(self, sets: NDArray[np.int32]) -> Sequence[NDArray[np.uint8]]:
        """Encode sets: the planes of low parts and of rows."""
        if (coding := find_coding(sets.nbytes)) is not None:
            return coding.encode_positions(sets, self.area, self.low_bits, self.row_bits)
        present = sets < self.area
        low = np.where(present, sets, 0)[:, :, None] >> np.arange(self.low_bits, dtype=np.int32)
        marks = np.zeros((sets.shape[0], self.row_bits), dtype=np.bool_)
        chunk, entry = np.nonzero(present)
        marks[chunk, (sets[chunk, entry] >> self.low_bits) + entry] = True
        return pack_rows((low & 1).astype(np.bool_)), pack_rows(marks)

    def decode(self, raw: NDArray[np.uint8], chunks: int) -> NDArray[np.int32]:
        """The sets of a group, int32 [chunks, topk]; every byte sequence but the canonical one is refused."""
        return self._read(raw, chunks, chunks)[0]

    def check(self, raw: NDArray[np.uint8], chunks: int) -> NDArray[np.int64]:
        """The sizes of the sets, int64 [chunks]; raises as `decode`."""
        return self._read(raw, chunks, 0)[1]

    def _read(self, raw: NDArray[np.uint8], chunks: int, kept: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The first sets and the sizes of all; compiled loops need no room for sets that are not kept."""
        assert raw.size == self.get_size_bytes(chunks), "the caller checks lengths"
        split = get_packed_bytes(chunks * self.topk * self.low_bits)
        lows, rows = raw[:split], raw[split:]
        is_low_clean = is_padding_zero(lows, chunks * self.topk * self.low_bits)
        if not (is_low_clean and is_padding_zero(rows, chunks * self.row_bits)):
            raise WireError("positions: padding bits must be zero")
        if (coding := find_coding(raw.size)) is not None:
            sets, sizes = np.empty((kept, self.topk), dtype=np.int32), np.empty(chunks, dtype=np.int64)
            if coding.decode_positions(lows, rows, self.area, self.low_bits, self.row_bits, sets, sizes):
                return sets, sizes
        sets = np.full((chunks, self.topk), self.area, dtype=np.int32)
        for block in iterate_blocks(chunks, self._block):
            self._decode_block(lows, rows, block, sets[block])
        return sets, (sets < self.area).sum(axis=1)

    def _decode_block(
        self, lows: NDArray[np.uint8], rows: NDArray[np.uint8], block: slice, sets: NDArray[np.int32]
    ) -> None:
        count = block.stop - block.start
        marks = unpack_rows(rows[get_bytes_of(block, self.row_bits)], count, self.row_bits)
        sizes = marks.sum(axis=1, dtype=np.int64)
        if int(sizes.max(initial=0)) > self.topk:
            raise WireError(f"positions: more than {self.topk} in a chunk")
        chunk, place = np.nonzero(marks)
        entry = np.arange(chunk.size) - (np.cumsum(sizes) - sizes)[chunk]
        positions = (place - entry) << self.low_bits
        if self.low_bits:
            positions += self._take_lows(lows, block, sizes)[chunk, entry]
        if int(positions.max(initial=0)) >= self.area:
            raise WireError(f"positions: one is not below {self.area}")
        if not ((np.diff(positions) > 0) | (np.diff(chunk) > 0)).all():
            raise WireError("positions: they must rise within a chunk")
        sets[chunk, entry] = positions

    def _take_lows(self, lows: NDArray[np.uint8], block: slice, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The low parts of a block, int64 [chunks, topk]."""
        count, bits = block.stop - block.start, self.topk * self.low_bits
        digits = unpack_rows(lows[get_bytes_of(block, bits)], count, bits).reshape(count, self.topk, self.low_bits)
        low = digits @ (1 << np.arange(self.low_bits))
        if (low * (np.arange(self.topk) >= sizes[:, None])).any():
            raise WireError("positions: low parts at or above the set's size must be zero")
        return low
