"""Training data on this machine: rows of token ids from memory-mapped files.

A row has exactly `sequence_length` ids. The model itself shifts them to make labels, as in the original Psyche, so
the last id of a row predicts nothing. Each file is cut into consecutive rows; a rest at its end that does not fill a
row is not used.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from psyche.data.files import TokenArray, TokenFile, find_files, open_token_file
from psyche.data.permutation import Permutation
from psyche.data.scan import ForeignToken, find_foreign_token
from psyche.errors import DataError, UnusableDataError

MAX_ROWS: Final = 65_535  # a round's batch is a u16
MAX_REQUEST_BYTES: Final = 1 << 30
MAX_OPEN_FILES: Final = 64  # memory maps kept open; other files are mapped again when they are read
MAX_INDEX: Final = 1 << 62
_log = structlog.get_logger("psyche.data")


class TokenRows:
    """The rows of token files, in order or shuffled; row i of pass p over the data has index i + p * num_sequences.

    After the last row the data starts over, in a new order if it is shuffled (`shuffle_seed`, 32 bytes). Reading is
    thread-safe. Folders stand for their token files, in the order of their names.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        token_size_bytes: int,
        sequence_length: int,
        shuffle_seed: bytes | None = None,
        vocab_size: int | None = None,
    ) -> None:
        if sequence_length < 1:
            raise DataError(f"sequence length {sequence_length}: must be above 0")
        self.token_size_bytes = token_size_bytes
        self.sequence_length = sequence_length
        self.vocab_size = vocab_size
        self.files = [open_token_file(path, token_size_bytes, vocab_size) for path in find_files(paths)]
        self._ends = np.cumsum([f.tokens // sequence_length for f in self.files], dtype=np.int64)
        self.num_sequences = int(self._ends[-1]) if self.files else 0
        if not self.num_sequences:
            names = ", ".join(str(path) for path in paths)
            raise DataError(f"{names}: no file holds {sequence_length} tokens, the length of one sequence")
        self.kept_files = min(len(self.files), MAX_OPEN_FILES)
        self._seed = shuffle_seed
        self._permutations: OrderedDict[int, Permutation] = OrderedDict()
        self._maps: OrderedDict[int, TokenArray] = OrderedDict()
        self._lock = threading.Lock()
        self._newest_pass = 0

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        rows = count_rows(start, end, self.sequence_length)
        places = self._find_places(np.arange(start, end + 1, dtype=np.int64))
        numbers = np.searchsorted(self._ends, places, side="right")
        out = np.empty((rows, self.sequence_length), dtype=np.uint32)
        for row, (number, place) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
            first = self._get_first_token(number, place)
            out[row] = self._map(number)[first : first + self.sequence_length]
        self._check_rows(out, numbers, places)
        return out

    def _find_places(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Map indexes to rows of the files, numbered across all files: int64, same shape."""
        passes, within = np.divmod(indexes, self.num_sequences)
        self._announce_pass(int(passes[-1]))
        if self._seed is None:
            return within
        places = np.empty_like(within)
        for number in range(int(passes[0]), int(passes[-1]) + 1):
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

    def _get_first_token(self, number: int, place: int) -> int:
        before = int(self._ends[number - 1]) if number else 0
        return (place - before) * self.sequence_length

    def _map(self, number: int) -> TokenArray:
        with self._lock:
            if number not in self._maps:
                self._maps[number] = self.files[number].map()
            self._maps.move_to_end(number)
            while len(self._maps) > MAX_OPEN_FILES:
                self._maps.popitem(last=False)
            return self._maps[number]

    def check_vocabulary(self) -> None:
        """Check ids of all files before anybody trains on them, at most 256 MiB (`find_foreign_token`)."""
        if self.vocab_size is None:
            return
        found = find_foreign_token(self.files, self.vocab_size)
        if found is not None:
            raise UnusableDataError(found.describe(self.vocab_size))

    def _check_rows(self, rows: NDArray[np.uint32], numbers: NDArray[np.intp], places: NDArray[np.int64]) -> None:
        if self.vocab_size is None or int(rows.max()) < self.vocab_size:
            return
        row, column = (int(i) for i in np.argwhere(rows >= self.vocab_size)[0])
        file: TokenFile = self.files[int(numbers[row])]
        position = self._get_first_token(int(numbers[row]), int(places[row])) + column
        raise UnusableDataError(ForeignToken(file, position, int(rows[row, column])).describe(self.vocab_size))


def count_rows(start: int, end: int, sequence_length: int) -> int:
    """Count the rows `start` to `end`, both included, before memory is allocated for them."""
    if not 0 <= start <= end < MAX_INDEX:
        raise DataError(f"samples {start} to {end}: the range must ascend and lie between 0 and {MAX_INDEX - 1}")
    rows = end - start + 1
    if rows > MAX_ROWS or rows * sequence_length * 4 > MAX_REQUEST_BYTES:
        raise DataError(f"samples {start} to {end}: {rows} rows are too many for one request")
    return rows
