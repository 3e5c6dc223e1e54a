"""The coding of sets and values as compiled loops over chunks (numba), with the bytes of the NumPy code.

Nothing here says what is wrong with a payload: loops return False, and the NumPy code, which has the rules, refuses it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from psyche.modeling.distro.bits import get_packed_bytes, is_padding_zero
from psyche.modeling.distro.codec import LEAST_EXPONENT
from psyche.modeling.distro.compiled import compile_loops, share
from psyche.modeling.distro.loops.vectors import LANES, WORD, get_bits, keep_marks, put_lows, put_values, view_bits

Words = NDArray[np.uint64]
_UNIT: Final = 64  # so many rows of any length end with a whole word, so that no two threads write the same one
_SHORT: Final = 14  # so many low bits are read for several positions at once
_BLOCK: Final = 512  # rows whose ranks are taken apart together: step after step, so that rows do not wait
_SEGMENT_BITS: Final = 5  # of the fraction of a rank, in the table of estimates
_FRACTION_BITS: Final = 52 - _SEGMENT_BITS
_FIRST_SEGMENT: Final = 1023 << _SEGMENT_BITS  # that of rank 1
_TOO_LOW: Final = 0.3  # estimates are this much too low, so that the right position is the estimate or the next one


def _to_words(raw: NDArray[np.uint8]) -> Words:
    """The bytes as words, with spare ones, so that any row can be read word by word, and 16 low parts at once."""
    words = np.zeros(raw.size // 8 + 6, dtype=np.uint64)
    words.view(np.uint8)[: raw.size] = raw
    return words


@compile_loops
def _get(words: Words, at: int, bits: int) -> int:
    """The number of 1 to 64 bits that begins at bit `at`."""
    place, shift = at >> 6, np.uint64(at & 63)
    number = words[place] >> shift | words[place + 1] << np.uint64(1) << (np.uint64(63) - shift)
    return number & (np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - bits))


@compile_loops
def _put_numbers(numbers: Words, bits: int, words: Words, start: int, stop: int) -> None:
    """Write numbers below 2^bits, of 1 to 64 bits, one after the other; the first one begins a word."""
    place, used, word = start * bits >> 6, 0, np.uint64(0)
    for row in range(start, stop):
        number = numbers[row]
        word |= number << np.uint64(used)
        used += bits
        if used >= 64:
            words[place] = word
            place += 1
            used -= 64
            word = number >> np.uint64(1) >> np.uint64(bits - used - 1)
    if used:
        words[place] = word


@compile_loops
def _get_numbers(words: Words, bits: int, numbers: Words, start: int, stop: int) -> None:
    for row in range(start, stop):
        numbers[row] = _get(words, row * bits, bits)


def pack_numbers(numbers: Words, bits: int) -> NDArray[np.uint8]:
    words = np.zeros(numbers.size * bits // 64 + 2, dtype=np.uint64)
    cut = numbers & np.uint64((1 << bits) - 1)
    share(numbers.size, lambda start, stop: _put_numbers(cut, bits, words, start, stop), _UNIT)
    return words.view(np.uint8)[: get_packed_bytes(numbers.size * bits)]


def unpack_numbers(raw: NDArray[np.uint8], count: int, bits: int) -> Words:
    words, numbers = _to_words(raw), np.empty(count, dtype=np.uint64)
    share(count, lambda start, stop: _get_numbers(words, bits, numbers, start, stop))
    return numbers


@compile_loops
def _put_positions(
    sets: NDArray[np.int32], area: int, low_bits: int, row_bits: int, lows: Words, rows: Words, start: int, stop: int
) -> None:
    topk, mask = sets.shape[1], (1 << low_bits) - 1
    current, word = start * row_bits >> 6, np.uint64(0)
    filled, used, part = start * topk * low_bits >> 6, 0, np.uint64(0)
    for chunk in range(start, stop):
        for entry in range(topk):
            place = np.int64(sets[chunk, entry])
            low = np.uint64(place & mask if place < area else 0)
            if place < area:
                mark = chunk * row_bits + (place >> low_bits) + entry
                if mark >> 6 != current:
                    rows[current] = word
                    current, word = mark >> 6, np.uint64(0)
                word |= np.uint64(1) << np.uint64(mark & 63)
            part |= low << np.uint64(used)
            used += low_bits
            if used >= 64:
                lows[filled] = part
                filled, used = filled + 1, used - 64
                part = low >> np.uint64(low_bits - used)
    rows[current] = word
    if used:
        lows[filled] = part


@compile_loops
def _find_places(
    lows: Words, rows: Words, chunk: int, topk: int, low_bits: int, row_bits: int, found: NDArray[np.int32]
) -> int:
    """The positions of a set; how many, which may be more than a set has."""
    size, mask = 0, (1 << low_bits) - 1
    for first in range(0, row_bits, 64):
        marks = np.int64(_get(rows, chunk * row_bits + first, min(64, row_bits - first)))
        size = keep_marks(marks, first, found, size)
    at = chunk * topk * low_bits
    if low_bits <= _SHORT:
        for entry in range(0, min(size, topk), LANES):
            put_lows(lows, at, low_bits, found, entry)
        return size
    for entry in range(min(size, topk)):
        found[entry] = (found[entry] - entry) << low_bits | get_bits(lows, at + entry * low_bits) & mask
    return size


@compile_loops
def _get_positions(
    lows: Words, rows: Words, area: int, low_bits: int, row_bits: int, sets: NDArray[np.int32],
    sizes: NDArray[np.int64], is_kept: bool, start: int, stop: int,
) -> bool:  # fmt: skip
    """Decode sets, and keep them or only their sizes; False if these bytes are no sets'."""
    topk, mask = sets.shape[1], (1 << low_bits) - 1
    found, is_bad = np.empty(row_bits + 2 * LANES, np.int32), False
    for chunk in range(start, stop):
        size = _find_places(lows, rows, chunk, topk, low_bits, row_bits, found)
        if size > topk:
            return False
        following = found[1:size]
        for entry in range(following.size):
            is_bad |= following[entry] <= found[entry]
        is_bad |= size > 0 and found[size - 1] >= area
        for entry in range(size, topk):
            is_bad |= get_bits(lows, (chunk * topk + entry) * low_bits) & mask > 0
        if is_kept:
            sets[chunk, :size] = found[:size]
            sets[chunk, size:] = area
        sizes[chunk] = size
    return not is_bad


def encode_positions(
    sets: NDArray[np.int32], area: int, low_bits: int, row_bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    chunks, topk = sets.shape
    lows, rows = (np.zeros(chunks * bits // 64 + 2, dtype=np.uint64) for bits in (topk * low_bits, row_bits))
    share(chunks, lambda start, stop: _put_positions(sets, area, low_bits, row_bits, lows, rows, start, stop), _UNIT)
    low_bytes, row_bytes = (get_packed_bytes(chunks * bits) for bits in (topk * low_bits, row_bits))
    return lows.view(np.uint8)[:low_bytes], rows.view(np.uint8)[:row_bytes]


def decode_positions(
    lows: NDArray[np.uint8], rows: NDArray[np.uint8], area: int, low_bits: int, row_bits: int,
    sets: NDArray[np.int32], sizes: NDArray[np.int64],
) -> bool:  # fmt: skip
    """Decode sets and their sizes; if `sets` has no row for each chunk, only the sizes."""
    is_kept = sets.shape[0] == sizes.size
    words, all_good = (_to_words(lows), _to_words(rows)), [True]

    def run(start: int, stop: int) -> None:
        if not _get_positions(*words, area, low_bits, row_bits, sets, sizes, is_kept, start, stop):
            all_good[0] = False

    share(sizes.size, run)
    return all_good[0]


@compile_loops
def _rank(
    sets: NDArray[np.int32], high_table: Words, low_table: Words, first_high: Words, first_low: Words, high: Words,
    low: Words, start: int, stop: int,
) -> None:  # fmt: skip
    topk, area = sets.shape[1], low_table.shape[1] - 1
    for chunk in range(start, stop):
        size, above, below = 0, np.uint64(0), np.uint64(0)
        for entry in range(topk):
            place = sets[chunk, entry]
            if place >= area:
                break
            size += 1
            step = low_table[size, place]
            below += step
            above += high_table[size, place] + np.uint64(below < step)  # carry
        below += first_low[size]
        high[chunk] = above + first_high[size] + np.uint64(below < first_low[size])
        low[chunk] = below


@compile_loops
def _unrank(
    high: Words, low: Words, sizes: NDArray[np.int64], tables: tuple[NDArray[np.uint64], Words, Words, Words],
    narrow: int, estimates: NDArray[np.float64], sets: NDArray[np.int32], start: int, stop: int,
) -> None:  # fmt: skip
    """The sets with these ranks."""
    wide_table, low_table, first_high, first_low = tables
    topk, area = sets.shape[1], low_table.shape[1] - 1
    all_above, all_below = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for first in range(start, stop, _BLOCK):
        held = sizes[first : min(first + _BLOCK, stop)]
        above, below = all_above[: held.size], all_below[: held.size]
        for row in range(held.size):
            step = first_low[held[row]]
            below[row] = low[first + row] - step
            above[row] = high[first + row] - first_high[held[row]] - np.uint64(low[first + row] < step)
        for j in range(topk, 0, -1):
            if j == 1:
                for row in range(below.size):
                    sets[first + row, 0] = below[row] if held[row] else area
                continue
            block = sets[first : first + held.size, j - 1]
            if j > narrow:
                _settle_wide(above, below, wide_table[j], estimates[j], j, held, area, block)
            else:
                _settle(below, low_table[j], estimates[j], j, held, area, block)


@compile_loops
def _estimate(rank: float, estimates: NDArray[np.float64]) -> np.uint64:
    bits = view_bits(rank)
    segment = np.uint64(max(0, (bits >> _FRACTION_BITS) - _FIRST_SEGMENT))
    fraction = np.float64(bits & ((1 << _FRACTION_BITS) - 1))
    return np.uint64(np.int64(estimates[segment, 0] + estimates[segment, 1] * fraction))


@compile_loops
def _settle(
    below: Words, table: Words, estimates: NDArray[np.float64], j: int, held: NDArray[np.int64], area: int,
    places: NDArray[np.int32],
) -> None:  # fmt: skip
    """The largest positions whose numbers are not above the ranks, from estimates; ranks lose them."""
    last, one = table.size - 2, np.uint64(1)
    for row in range(below.size):
        rest = below[row]
        place = _estimate(np.float64(rest), estimates)
        place += np.uint64(table[place + one] <= rest)
        if (table[place] > rest) | (table[place + one] <= rest):  # rarely
            found = np.int64(place)
            while found < last and table[found + 1] <= rest:
                found += 1
            while found >= j and table[found] > rest:
                found -= 1
            place = np.uint64(found)
        is_held = held[row] >= j
        places[row] = np.int64(place) if is_held else area
        below[row] = rest - table[place] * np.uint64(is_held)


@compile_loops
def _is_above(table: NDArray[np.uint64], place: int, high: int, low: int) -> bool:
    return (table[place, 0] > high) | ((table[place, 0] == high) & (table[place, 1] > low))


@compile_loops
def _settle_wide(
    above: Words, below: Words, table: NDArray[np.uint64], estimates: NDArray[np.float64], j: int,
    held: NDArray[np.int64], area: int, places: NDArray[np.int32],
) -> None:  # fmt: skip
    """As `_settle`, of numbers of two words."""
    last, one = len(table) - 2, np.uint64(1)
    for row in range(below.size):
        high, low = above[row], below[row]
        place = _estimate(np.float64(low) + np.float64(high) * 18446744073709551616.0, estimates)
        place += np.uint64(not _is_above(table, place + one, high, low))
        if _is_above(table, place, high, low) | (not _is_above(table, place + one, high, low)):  # rarely
            found = np.int64(place)
            while found < last and not _is_above(table, found + 1, high, low):
                found += 1
            while found >= j and _is_above(table, found, high, low):
                found -= 1
            place = np.uint64(found)
        is_held = held[row] >= j
        places[row] = np.int64(place) if is_held else area
        if is_held:
            above[row] = high - table[place, 0] - np.uint64(low < table[place, 1])
            below[row] = low - table[place, 1]


@compile_loops
def _find_sizes(
    high: Words, low: Words, first_high: Words, first_low: Words, sizes: NDArray[np.int64], start: int, stop: int
) -> None:
    for row in range(start, stop):
        size = first_high.size - 1
        while size and (
            (high[row] > first_high[size - 1])
            | ((high[row] == first_high[size - 1]) & (low[row] >= first_low[size - 1]))
        ):
            size -= 1
        sizes[row] = size


def find_sizes(coder: Any, high: Words, low: Words) -> NDArray[np.int64]:
    """The sizes of the sets with these ranks."""
    sizes = np.empty(high.size, dtype=np.int64)
    share(high.size, lambda start, stop: _find_sizes(high, low, *coder.tables[2:], sizes, start, stop))
    return sizes


def rank(coder: Any, sets: NDArray[np.int32]) -> tuple[Words, Words]:
    """`EnumerativeCoder.rank` of all sets."""
    high, low = (np.empty(sets.shape[0], dtype=np.uint64) for _ in range(2))
    share(sets.shape[0], lambda start, stop: _rank(sets, *coder.tables, high, low, start, stop))
    return high, low


def unrank(coder: Any, high: Words, low: Words, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """`EnumerativeCoder.unrank` of all ranks."""
    sets = np.empty((sizes.size, coder.topk), dtype=np.int32)
    tables, estimates = (_pair_words(coder), *coder.tables[1:]), _make_estimates(coder)

    def run(start: int, stop: int) -> None:
        _unrank(high, low, sizes, tables, coder.narrow, estimates, sets, start, stop)

    share(sizes.size, run)
    return sets


@lru_cache(maxsize=16)
def _pair_words(coder: Any) -> NDArray[np.uint64]:
    """C(c, j), [j, c, 2]: high and low words beside each other, since a look-up needs both."""
    return np.stack(coder.tables[:2], axis=-1)


@lru_cache(maxsize=16)
def _make_estimates(coder: Any) -> NDArray[np.float64]:
    """Estimated positions, [j, segment, 2]: at the first rank of a segment, and what a unit of the fraction adds.

    A segment is all ranks with the same exponent and first bits of the fraction.
    """
    segment = np.arange(((coder.bits + 1) << _SEGMENT_BITS) + 1)
    parts = 1 << _SEGMENT_BITS
    firsts = np.ldexp(1 + segment % parts / parts, segment // parts)
    made = np.zeros((coder.topk + 1, segment.size - 1, 2))
    for j in range(1, coder.topk + 1):
        places = np.clip(coder.estimate(j, firsts) - _TOO_LOW, j - 1, coder.area - 2)
        made[j, :, 0] = places[:-1]
        made[j, :, 1] = np.diff(places) / (1 << _FRACTION_BITS)
    return made


@compile_loops
def _get_values(signs: Words, levels: Words, values: NDArray[np.int8], start: int, stop: int) -> None:
    """64 values of each word of both planes; without levels that plane is empty."""
    for word in range(start, stop):
        put_values(np.int64(signs[word]), np.int64(levels[word]) if levels.size else 0, values, word * WORD)


@compile_loops
def _end_values(
    sets: NDArray[np.int32], area: int, exponents: NDArray[np.int8], values: NDArray[np.int8], start: int, stop: int
) -> bool:
    """Make values beyond the sizes of sets zero; False if bits are set there, or an exponent breaks a rule."""
    is_bad = False
    for chunk in range(start, stop):
        size = sets.shape[1]
        while size and sets[chunk, size - 1] == area:
            size -= 1
            is_bad |= values[chunk, size] != 1
            values[chunk, size] = 0
        if exponents.size:
            exponent = exponents[chunk]
            is_bad |= exponent > 0 or exponent < LEAST_EXPONENT or (exponent and not size)
    return not is_bad


def decode_values(
    planes: Sequence[NDArray[np.uint8]], exponents: NDArray[np.int8] | None, sets: NDArray[np.int32], area: int
) -> NDArray[np.int8] | None:
    """Values of planes of signs and levels, int8 [chunks, topk]; None if one of them or an exponent breaks a rule."""
    if not all(is_padding_zero(plane, sets.size) for plane in planes):
        return None
    words, all_good = -(-sets.size // WORD), [True]
    signs = _to_words(planes[0])
    levels = _to_words(planes[1]) if len(planes) > 1 else signs[:0]
    whole = np.empty(words * WORD, dtype=np.int8)
    values = whole[: sets.size].reshape(sets.shape)
    scales = np.empty(0, dtype=np.int8) if exponents is None else exponents

    def end(start: int, stop: int) -> None:
        if not _end_values(sets, area, scales, values, start, stop):
            all_good[0] = False

    share(words, lambda start, stop: _get_values(signs, levels, whole, start, stop))
    share(sets.shape[0], end)
    return values if all_good[0] else None
