"""Samples of tokens become rows of one length: several share a row, or each has one of its own.

Samples wait in a file, so that any number of them fits, and each pass over them has an order of its own.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import BinaryIO, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from psyche.data.order import RowOrder
from psyche.wire.data import NOT_COUNTED

GROUP_SAMPLES: Final = 5_000  # among which a place for the next one is sought

Mode = Literal["ffd", "random_fit"]


class Piece(NamedTuple):
    """Tokens of one sample, by their places among those of all samples."""

    start: int
    end: int


class Row(NamedTuple):
    inputs: NDArray[np.int32]
    labels: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    sequence_lengths: list[int]


class Samples:
    """The tokens of all samples, in a file. One that does not count is kept as ~id, which is below 0."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("wb")
        self._ends = array("q", [0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, ids: NDArray[np.int32], counts: NDArray[np.bool_]) -> None:
        self._file.write(np.where(counts, ids, ~ids).astype("<i4").tobytes())
        self._ends.append(self._ends[-1] + len(ids))

    def finish(self) -> NDArray[np.int32]:
        """Write what is left, and open all tokens to be read; there must be some."""
        self._file.close()
        return np.memmap(self._path, dtype="<i4", mode="r")

    def shuffle(self, seed: int, number: int) -> Iterator[Piece]:
        """All samples once, in the order of pass `number`."""
        order = RowOrder([len(self)], hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=32).digest())
        for first in range(0, len(self), GROUP_SAMPLES):
            for place in order.find(np.arange(first, min(first + GROUP_SAMPLES, len(self))))[1].tolist():
                yield Piece(self._ends[place], self._ends[place + 1])


def fill(samples: Iterator[Piece], length: int) -> Iterator[list[Piece]]:
    """Put texts one after another; one that does not fit goes on in the next row."""
    row: list[Piece] = []
    room = length
    for start, end in samples:
        while start < end:
            piece = Piece(start, min(end, start + room))
            row.append(piece)
            room -= piece.end - piece.start
            start = piece.end  # noqa: PLW2901 (the rest of it)
            if not room:
                yield row
                row, room = [], length
    if row:
        yield row


def pack(samples: Iterator[Piece], length: int, mode: Mode, random: Random) -> Iterator[list[Piece]]:
    """Put whole samples of at most `length` tokens together, group by group.

    `ffd`: the longest first, each into the first row with room for it. `random_fit`: as they come, each into any row
    with room for it, then rows and the samples in each are shuffled.
    """
    group: list[Piece] = []
    for sample in samples:
        group.append(sample)
        if len(group) == GROUP_SAMPLES:
            yield from _pack_group(group, length, mode, random)
            group = []
    yield from _pack_group(group, length, mode, random)


def _pack_group(group: list[Piece], length: int, mode: Mode, random: Random) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    room = np.zeros(len(group), dtype=np.int64)
    if mode == "ffd":
        group.sort(key=lambda piece: piece.start - piece.end)
    for piece in group:
        size = piece.end - piece.start
        fitting = np.flatnonzero(room[: len(rows)] >= size)
        if not len(fitting):
            room[len(rows)] = length
            fitting = [len(rows)]
            rows.append([])
        chosen = int(fitting[0] if mode == "ffd" else fitting[random.randrange(len(fitting))])
        rows[chosen].append(piece)
        room[chosen] -= size
    if mode == "random_fit":
        random.shuffle(rows)
        for row in rows:
            random.shuffle(row)
    return rows


def build_row(tokens: NDArray[np.int32], pieces: Sequence[Piece], length: int, padding: int) -> Row:
    """Build a row; what is left of it is one more sequence, which does not count."""
    raw = np.concatenate([tokens[piece.start : piece.end] for piece in pieces])
    rest = length - len(raw)
    raw = np.concatenate([raw, np.full(rest, ~padding, dtype=np.int32)])
    lengths = [piece.end - piece.start for piece in pieces] + [rest] * (rest > 0)
    places = np.concatenate([np.arange(one, dtype=np.int32) for one in lengths])
    return Row(np.where(raw < 0, ~raw, raw), np.where(raw < 0, NOT_COUNTED, raw).astype(np.int32), places, lengths)
