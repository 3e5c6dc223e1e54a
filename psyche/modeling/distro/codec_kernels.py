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
_ROUNDING: Final = 2.0**-50  # of ranks as float64, so that no estimate is too high


def _to_words(raw: NDArray[np.uint8]) -> Words:
    """The bytes as words, with spare ones, so that any row can be read word by word, and 16 low parts at once."""
    words = np.zeros(raw.size // 8 + 6, dtype=np.uint64)
    words.view(np.uint8)[: raw.size] = raw
    return words


@compile_loops
def _get(words: Words, at: int, bits: int) -> int:
    """The number of 1 to 64 bits that begins at bit `at`."""
    place, shift = np.uint64(at >> 6), np.uint64(at & 63)
    number = words[place] >> shift | words[place + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shift)
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


def pack_numbers(numbers: Words, bits: int) -> NDArray[np.uint8]:
    words = np.zeros(numbers.size * bits // 64 + 2, dtype=np.uint64)
    cut = numbers & np.uint64((1 << bits) - 1)
    share(numbers.size, lambda start, stop: _put_numbers(cut, bits, words, start, stop), _UNIT)
    return words.view(np.uint8)[: get_packed_bytes(numbers.size * bits)]


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
def _decode_ranks(
    words: Words, planes: NDArray[np.int64], tables: tuple[Words, Words, Words, Words], uppers: Words, narrow: int,
    estimates: tuple[NDArray[np.uint16], NDArray[np.int64]], sets: NDArray[np.int32], sizes: NDArray[np.int64],
    is_kept: bool, start: int, stop: int,
) -> bool:  # fmt: skip
    """Decode sets, and keep them or only their sizes; False if a rank is no set's."""
    all_above, all_below = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for first in range(start, stop, _BLOCK):
        held = sizes[first : min(first + _BLOCK, stop)]
        above, below = all_above[: held.size], all_below[: held.size]
        _read_ranks(words, planes, first, above, below)
        rest = _find_full(tables[2:], above, below, held)
        if rest and not _find_sizes(tables[2:], above, below, held):
            return False
        if not is_kept:
            continue
        found = sets[first : first + held.size]
        _unrank(above, below, tables, uppers, narrow, estimates, found)
        for row in range(held.size if rest else 0):
            if held[row] < sets.shape[1]:
                _read_ranks(words, planes, first + row, above[:1], below[:1])
                _search(above[0], below[0], held[row], tables, found[row])
    return True


@compile_loops
def _unrank(
    above: Words, below: Words, tables: tuple[Words, Words, Words, Words], uppers: Words, narrow: int,
    estimates: tuple[NDArray[np.uint16], NDArray[np.int64]], sets: NDArray[np.int32],
) -> None:  # fmt: skip
    """The full sets with these ranks."""
    positions, segments = estimates
    for j in range(sets.shape[1], 0, -1):
        if j > narrow:
            words = tables[0][j], tables[1][j], uppers[j]
            _take_wide(above, below, words, segments[j, 2], positions, segments[j, 0], segments[j, 1], sets[:, j - 1])
        elif j > 1:
            _take(below, tables[1][j], positions, segments[j, 0], segments[j, 1], sets[:, j - 1])
        else:
            for row in range(below.size):
                sets[row, 0] = below[row]


@compile_loops
def _take(
    below: Words, table: Words, estimates: NDArray[np.uint16], shift: int, added: int, places: NDArray[np.int32]
) -> None:
    """The largest positions whose numbers are not above the ranks, from estimates; ranks lose them."""
    one = np.uint64(1)
    for row in range(below.size):
        rest = below[row]
        place = np.uint64(estimates[np.uint64((view_bits(np.float64(rest | one)) >> shift) + added)])
        place += np.uint64(table[place + one] <= rest)
        while table[place + one] <= rest:  # rarely
            place += one
        places[row] = np.int64(place)
        below[row] = rest - table[place]


@compile_loops
def _take_wide(
    above: Words, below: Words, tables: tuple[Words, Words, Words], left: int, estimates: NDArray[np.uint16],
    shift: int, added: int, places: NDArray[np.int32],
) -> None:  # fmt: skip
    """As `_take`, of numbers of two words: their upper 64 bits say mostly which is larger."""
    highs, lows, uppers = tables
    one, to_left, to_right = np.uint64(1), np.uint64(left), np.uint64(63 - left)
    for row in range(below.size):
        high, low = above[row], below[row]
        upper = low >> one >> to_right | high << to_left
        place = np.uint64(estimates[np.uint64((view_bits(np.float64(upper | one)) >> shift) + added)])
        place += np.uint64(uppers[place + one] < upper)
        if uppers[place + one] <= upper:  # rarely
            place = np.uint64(_bisect(highs, lows, high, low, np.int64(place)))
        places[row] = np.int64(place)
        above[row] = high - highs[place] - np.uint64(low < lows[place])
        below[row] = low - lows[place]


@compile_loops
def _bisect(highs: Words, lows: Words, high: int, low: int, place: int) -> int:
    """The largest position, of this one and those behind it, whose number is not above a rank."""
    end = highs.size - 1
    while end - place > 1:
        middle = (place + end) // 2
        if (highs[middle] > high) | ((highs[middle] == high) & (lows[middle] > low)):
            end = middle
        else:
            place = middle
    return place


@compile_loops
def _search(
    high: int, low: int, size: int, tables: tuple[Words, Words, Words, Words], found: NDArray[np.int32]
) -> None:
    """A set that is not full: there are few of them."""
    high_table, low_table, first_high, first_low = tables
    high -= first_high[size] + np.uint64(low < first_low[size])
    low -= first_low[size]
    found[size:] = low_table.shape[1] - 1
    for j in range(size, 0, -1):
        place = _bisect(high_table[j], low_table[j], high, low, j - 1)
        found[j - 1] = place
        high -= high_table[j, place] + np.uint64(low < low_table[j, place])
        low -= low_table[j, place]


@compile_loops
def _read_ranks(words: Words, planes: NDArray[np.int64], row: int, high: Words, low: Words) -> None:
    """The ranks from a row on; planes have a first bit, bits of a row, and a place in the rank."""
    high[:], low[:] = 0, 0
    for plane in range(len(planes)):
        bits = planes[plane, 1]
        ranks, left = high if planes[plane, 2] >= 64 else low, np.uint64(planes[plane, 2] & 63)
        first = planes[plane, 0] + row * bits
        for number in range(low.size):
            ranks[number] |= _get(words, first + number * bits, bits) << left


@compile_loops
def _find_full(firsts: tuple[Words, Words], high: Words, low: Words, sizes: NDArray[np.int64]) -> int:
    """Set the sizes of full sets, and 0 for the others; how many they are."""
    topk, rest = firsts[0].size - 1, 0
    next_high, next_low = firsts[0][topk - 1], firsts[1][topk - 1]
    for row in range(low.size):
        is_full = (high[row] < next_high) | ((high[row] == next_high) & (low[row] < next_low))
        sizes[row] = topk * is_full
        rest += not is_full
    return rest


@compile_loops
def _find_sizes(firsts: tuple[Words, Words], high: Words, low: Words, sizes: NDArray[np.int64]) -> bool:
    """Find the sizes of sets that are not full, now 0, and zero their ranks; False if one is too high."""
    first_high, first_low = firsts
    is_bad = False
    for row in range(low.size):
        above, below, size = high[row], low[row], first_high.size - 1
        if sizes[row] == size:
            continue
        # The empty set is last.
        is_bad |= (above > first_high[0]) | ((above == first_high[0]) & (below > first_low[0]))
        while size and (
            (above > first_high[size - 1]) | ((above == first_high[size - 1]) & (below >= first_low[size - 1]))
        ):
            size -= 1
        sizes[row], high[row], low[row] = size, 0, 0
    return not is_bad


def rank(coder: Any, sets: NDArray[np.int32]) -> tuple[Words, Words]:
    """`EnumerativeCoder.rank` of all sets."""
    high, low = (np.empty(sets.shape[0], dtype=np.uint64) for _ in range(2))
    share(sets.shape[0], lambda start, stop: _rank(sets, *coder.tables, high, low, start, stop))
    return high, low


def decode_ranks(
    coder: Any, raw: NDArray[np.uint8], planes: Sequence[int], sets: NDArray[np.int32], sizes: NDArray[np.int64]
) -> bool:
    """Decode sets and their sizes from planes of so many bits; if `sets` has no row for each chunk, only the sizes."""
    places, at, offset = np.empty((len(planes), 3), dtype=np.int64), 0, 0
    for number, bits in enumerate(planes):
        places[number] = offset * 8, bits, at
        at, offset = at + bits, offset + get_packed_bytes(sizes.size * bits)
    given = _to_words(raw), places, coder.tables, _get_uppers(coder), coder.narrow, _make_estimates(coder)
    is_kept, all_good = sets.shape[0] == sizes.size, [True]

    def run(start: int, stop: int) -> None:
        if not _decode_ranks(*given, sets, sizes, is_kept, start, stop):
            all_good[0] = False

    share(sizes.size, run)
    return all_good[0]


@lru_cache(maxsize=16)
def _get_uppers(coder: Any) -> Words:
    """The upper 64 bits of C(c, j), [j, c], as wide as ranks."""
    high, low = coder.tables[:2]
    left = min(63, 128 - coder.bits)
    return low >> np.uint64(1) >> np.uint64(63 - left) | high << np.uint64(left)


@lru_cache(maxsize=16)
def _make_estimates(coder: Any) -> tuple[NDArray[np.unsignedinteger[Any]], NDArray[np.int64]]:
    """Positions for segments of ranks, of all j one after the other: the right one is mostly the estimate or the next.

    A segment is all ranks that have, as a float64, the same exponent and first bits of the fraction, so many that few
    segments have two positions. For each j: the bits that are left, what is added to the others to find a segment, and
    how far the high word of a wide rank goes to the left, for its upper bits.
    """
    parts, segments = [], np.zeros((coder.topk + 1, 3), dtype=np.int64)
    for j in range(2, coder.topk + 1):
        fraction_bits = (coder.area // j).bit_length()
        added = sum(part.size for part in parts) - (1023 << fraction_bits)
        segments[j] = 52 - fraction_bits, added, min(63, 128 - coder.bits)
        segment = np.arange(65 << fraction_bits)
        firsts = np.ldexp(1 + segment % (1 << fraction_bits) / (1 << fraction_bits), segment >> fraction_bits)
        firsts[0] = 0  # it has rank 0 too
        is_wide = j > coder.narrow
        numbers = (_get_uppers(coder)[j, j:-1] if is_wide else coder.tables[1][j, j:-1]).astype(np.float64)
        parts.append(j - 1 + np.searchsorted((numbers + is_wide) * (1 + _ROUNDING), firsts, side="right"))
    return np.concatenate(parts or [[]]).astype(np.min_scalar_type(coder.area)), segments


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
