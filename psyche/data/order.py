"""The order of samples: the file and row of each index, the same on every machine and for every kind of source."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from psyche.data.permutation import Permutation
from psyche.errors import DataError
from psyche.telemetry.text import format_bytes

MAX_ROWS: Final = 65_535  # a round's batch is a u16
MAX_REQUEST_BYTES: Final = 1 << 30
MAX_INDEX: Final = 1 << 62
_log = structlog.get_logger("psyche.data")


@dataclass(frozen=True, slots=True)
class RemoteSize:
    """How much data there is at a place."""

    address: str
    samples: int
    size_bytes: int
    pinned: str = ""  # the data location's address, so that it means what is there now

    def describe(self) -> str:
        return f"{self.address}: {self.samples:,} samples, {format_bytes(self.size_bytes)}"


class RowOrder:
    """Index i + p * num_sequences stands for row i of pass p over all files; thread-safe.

    After the last row the data starts over, in a new order if it is shuffled (`shuffle_seed`, 32 bytes). Memory does
    not grow with the number of rows.
    """

    def __init__(self, rows_per_file: Sequence[int], shuffle_seed: bytes | None = None) -> None:
        self._ends = np.cumsum(rows_per_file, dtype=np.int64)
        self.num_sequences = int(self._ends[-1]) if len(rows_per_file) else 0
        self._seed = shuffle_seed
        self._permutations: OrderedDict[int, Permutation] = OrderedDict()
        self._lock = threading.Lock()
        self._newest_pass = 0

    def find(self, indexes: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Find the file of each index, and the row within that file."""
        passes, within = np.divmod(indexes, self.num_sequences)
        self._announce_pass(int(passes.max()))
        places = within if self._seed is None else self._shuffle(passes, within)
        numbers = np.searchsorted(self._ends, places, side="right")
        firsts = np.concatenate([[0], self._ends[:-1]])
        return numbers, places - firsts[numbers]

    def _shuffle(self, passes: NDArray[np.int64], within: NDArray[np.int64]) -> NDArray[np.int64]:
        places = np.empty_like(within)
        for number in np.unique(passes).tolist():
            chosen = passes == number
            places[chosen] = self._get_permutation(number).permute(within[chosen]).astype(np.int64)
        return places

    def _get_permutation(self, pass_number: int) -> Permutation:
        with self._lock:
            if pass_number not in self._permutations:
                assert self._seed is not None, "only shuffled data is permuted"
                self._permutations[pass_number] = Permutation(self.num_sequences, self._seed, pass_number)
            self._permutations.move_to_end(pass_number)
            while len(self._permutations) > 2:  # a range touches at most two passes, unless the data is tiny
                self._permutations.popitem(last=False)
            return self._permutations[pass_number]

    def _announce_pass(self, pass_number: int) -> None:
        with self._lock:
            is_new = pass_number > self._newest_pass
            self._newest_pass = max(self._newest_pass, pass_number)
        if is_new:
            order = "the same order" if self._seed is None else "a new order"
            _log.info(
                "all data is used, starting over", pass_number=pass_number, sequences=self.num_sequences, order=order
            )


def count_rows(start: int, end: int, sequence_length: int) -> int:
    """Count the rows `start` to `end`, both included, before memory is allocated for them."""
    if not 0 <= start <= end < MAX_INDEX:
        raise DataError(f"samples {start} to {end}: the range must ascend and lie between 0 and {MAX_INDEX - 1}")
    rows = end - start + 1
    if rows > MAX_ROWS or rows * sequence_length * 4 > MAX_REQUEST_BYTES:
        raise DataError(f"samples {start} to {end}: {rows} rows are too many for one request")
    return rows
