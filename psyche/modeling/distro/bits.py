"""Packing of fixed-width integers into bytes, lowest bit first (NumPy only)."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.modeling.distro.compiled import find_coding

BLOCK_ROWS: Final = 16_384  # a multiple of 8, so that a block of any row length begins at a byte


def iterate_blocks(rows: int, block: int = BLOCK_ROWS) -> Iterator[slice]:
    """Slices of at most `block` rows, so that temporaries stay in the cache; `block` is a multiple of 8."""
    for start in range(0, rows, block):
        yield slice(start, min(rows, start + block))


def get_packed_bytes(bits: int) -> int:
    return (bits + 7) // 8


def pack_rows(rows: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack bits, bool [rows, bits], into bytes, lowest bit first; zeros pad the last byte."""
    return np.packbits(rows.reshape(-1), bitorder="little")


def unpack_rows(raw: NDArray[np.uint8], rows: int, bits: int) -> NDArray[np.uint8]:
    """The inverse of `pack_rows`: uint8 [rows, bits] of 0 and 1; padding is not checked."""
    return np.unpackbits(raw, count=rows * bits, bitorder="little").reshape(rows, bits)


def is_padding_zero(raw: NDArray[np.uint8], bits: int) -> bool:
    """Whether the padding in the last byte, beyond `bits` bits in total, is zero."""
    used = bits % 8
    return used == 0 or raw.size == 0 or int(raw[-1]) >> used == 0


def pack_numbers(numbers: NDArray[np.uint64], bits: int) -> NDArray[np.uint8]:
    """Pack numbers below 2^bits, uint64 [rows], into bytes, `bits` bits each."""
    packed = np.empty(get_packed_bytes(numbers.size * bits), dtype=np.uint8)
    if (coding := find_coding(numbers.nbytes)) is not None:
        return coding.pack_numbers(numbers, bits)
    for block in iterate_blocks(numbers.size):
        octets = np.ascontiguousarray(numbers[block]).astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
        rows = np.unpackbits(octets[:, : get_packed_bytes(bits)], axis=1, count=bits, bitorder="little")
        packed[get_bytes_of(block, bits)] = pack_rows(rows.astype(np.bool_, copy=False))
    return packed


def unpack_numbers(raw: NDArray[np.uint8], count: int, bits: int) -> NDArray[np.uint64]:
    """The inverse of `pack_numbers`: uint64 [count]."""
    numbers = np.empty(count, dtype=np.uint64)
    for block in iterate_blocks(count):
        rows = unpack_rows(raw[get_bytes_of(block, bits)], block.stop - block.start, bits)
        octets = np.zeros((rows.shape[0], 8), dtype=np.uint8)
        octets[:, : get_packed_bytes(bits)] = np.packbits(rows, axis=1, bitorder="little")
        numbers[block] = octets.view("<u8").reshape(-1)
    return numbers


def get_bytes_of(block: slice, bits: int) -> slice:
    """Where the rows of a block lie, of `bits` bits each; a block begins at a multiple of 8 rows."""
    return slice(block.start * bits // 8, get_packed_bytes(block.stop * bits))
