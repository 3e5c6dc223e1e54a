"""The choice of the largest of a row as compiled loops, with the result of `transform.select`.

Rows beside each other are much alike. So the least magnitude that one of them sends, less a margin, leaves few
candidates of the next.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from psyche.modeling.distro.compiled import compile_loops
from psyche.modeling.distro.loops.vectors import INFINITY, LANES, WORD, count_ones, keep_lanes, match

_MARGIN: Final = 3 << 18  # a sixteenth of a magnitude
_WEIGHT: Final = 4  # rows that a guess is the mean of
_FIRST_STEP: Final = 1 << 20

Floats = NDArray[np.float32]
Places = NDArray[np.int32]


@compile_loops
def get_key(value: np.float32) -> int:
    """A magnitude by its bits, which have the same order; 0 for infinite ones and NaN."""
    bits = np.float32(value).view(np.int32) & np.int32(0x7FFFFFFF)
    return int(bits) if bits < INFINITY else 0


@compile_loops
def count_from(row: Floats, least: int) -> int:
    """How many of a row have at least this key."""
    count, whole = 0, row.size // WORD * WORD
    for first in range(0, whole, WORD):
        count += count_ones(match(row, first, np.int32(least)))
    for place in range(whole, row.size):
        count += get_key(row[place]) >= least
    return count


@compile_loops
def find_bound(row: Floats, topk: int, guess: int) -> int:
    """The largest key that at least `topk` reach, or 0; it ends early at one that exactly `topk` reach.

    It is looked for from `guess` on, in steps that become larger, and then bit by bit.
    """
    low, high, step = 0, INFINITY, _FIRST_STEP
    middle = guess
    while low < high:
        count = count_from(row, middle)
        if count == topk:
            return middle
        if count > topk:
            low = middle
        else:
            high = middle - 1
        if step and low and high < INFINITY:
            step = 0
        if step:
            middle = min(low + step, INFINITY) if low else max(high - step, 1)
            step *= 2
        else:
            middle = low + (high - low + 1) // 2
    return low


@compile_loops
def gather(row: Floats, least: int, places: Places, values: Floats) -> int:
    """What has at least this key, in rising order; how many there are."""
    size, whole = 0, row.size // WORD * WORD
    for first in range(0, whole, WORD):
        found = match(row, first, np.int32(least))
        if found:
            for part in range(first, first + WORD, LANES):
                keep_lanes(row, part, found, places, values, size)
                size += count_ones(found & 0xFFFF)
                found >>= LANES
    for place in range(whole, row.size):
        if get_key(row[place]) >= least:
            places[size], values[size] = place, row[place]
            size += 1
    return size


@compile_loops
def select(
    row: Floats, topk: int, guess: int, near: tuple[Places, Floats], indices: Places, values: Floats
) -> tuple[int, int]:
    """The `topk` largest of a row in rising order of their places; how many there are, and a guess for the next row.

    `near` has room for the places and values of a row and 64 more.
    """
    places, found = near
    least = max(1, guess - _MARGIN)
    size = gather(row, least, places, found)
    if size < topk and least > 1:
        least = max(1, find_bound(row, topk, least))
        size = gather(row, least, places, found)
    padded = -(-size // WORD) * WORD
    found[size:padded] = 0
    bound = find_bound(found[:padded], topk, least) if size > topk else least - 1
    ties = topk - count_from(found[:padded], bound + 1)
    kept = 0
    for entry in range(size):
        key = get_key(found[entry])
        is_tie = key == bound and ties > 0
        ties -= is_tie
        if kept == topk:
            break
        indices[kept], values[kept] = places[entry], found[entry]  # unless it is kept, the next one takes its place
        kept += is_tie or key > bound
    return kept, guess + (bound - guess) // _WEIGHT if guess and size < 4 * topk else bound
