"""Rows of Parquet files with labels, positions and the lengths of the sequences in each row.

Columns: `inputs`, and with labels `labels` (-100: does not count); `position_ids` and `sequence_lengths` may be left
out, then a row is one sequence. One group of rows of a file is in memory at a time, and the one before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from psyche.core.encoding.data_manifest import WHOLE_BYTES
from psyche.data.files import TokenFile
from psyche.data.order import RowOrder, count_rows
from psyche.durable import open_file
from psyche.errors import DataError, UnusableDataError
from psyche.wire.data import BEGINS, LABELLED_BYTES, NOT_COUNTED

if TYPE_CHECKING:
    from pyarrow import parquet

SUFFIX: Final = ".parquet"
SPLIT: Final = "train"
INPUTS: Final = "inputs"
MAX_GROUP_NUMBERS: Final = 1 << 24  # of a column, in memory at once
_KEPT_GROUPS: Final = 2
_OPTIONAL: Final = ("position_ids", "sequence_lengths")
Opener = Callable[[], BinaryIO]


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    opener: Opener
    number: int
    rows: int
    first_row: int  # within the file
    columns: tuple[str, ...]


def choose_files(
    names: Iterable[str], split: str = SPLIT, subset: str | None = None, suffixes: tuple[str, ...] = (SUFFIX,)
) -> list[str]:
    """The files of a split: those with it in their path or, where nothing is called `train`, all instead of that.

    Of a `subset` these are below a folder of its name.
    """
    found = sorted(name for name in names if name.endswith(suffixes))
    found = [name for name in found if subset is None or subset in name.split("/")[:-1]]
    named = [name for name in found if any(part.startswith(split) for part in name.split("/"))]
    return named or (found if split == SPLIT else [])


def open_rows(
    path: Path, sequence_length: int, *, has_labels: bool, shuffle_seed: bytes | None = None,
    vocab_size: int | None = None,
) -> "PreparedRows":  # fmt: skip
    """Open a folder, or a single file."""
    files = list_row_files(path)
    rows = PreparedRows(list(map(_make_opener, files)), sequence_length, has_labels, shuffle_seed, vocab_size)
    rows.files = files
    return rows


def list_row_files(path: Path) -> list[TokenFile]:
    """List the files that a folder's rows are in, or a single one, as a manifest has them.

    Raises:
        DataError: there is none.
    """
    files = {file.relative_to(path).as_posix(): file for file in path.rglob(f"*{SUFFIX}") if file.is_file()}
    chosen = {path.name: path} if path.is_file() else {name: files[name] for name in choose_files(files)}
    if not chosen:
        raise DataError(f"{path}: contains no {SUFFIX} file")
    return [TokenFile(file, WHOLE_BYTES, 0, file.stat().st_size, name) for name, file in chosen.items()]


def _make_opener(file: TokenFile) -> tuple[str, Opener]:
    return str(file.path), partial(open_file, file.path)


@dataclass(frozen=True, slots=True)
class RowForm:
    """Numbers of a row, and whether it has labels."""

    length: int
    has_labels: bool


def find_form(name: str, opener: Opener) -> RowForm:
    """Find the form of the rows of a file by its first one.

    Raises:
        DataError: the file cannot be read, or has no rows.
    """
    with open_parquet(name, opener) as file:
        names = file.schema_arrow.names
        if INPUTS not in names or not file.metadata.num_rows:
            raise DataError(f"{name}: has no rows with a column {INPUTS!r} (columns: {', '.join(names[:12])})")
        batch = next(file.iter_batches(1, columns=[INPUTS], use_threads=False))
        return RowForm(len(batch.column(0)[0]), "labels" in names)


def has_rows(path: Path) -> bool:
    """Whether a file is Parquet with a column of inputs, or a folder has such files."""
    if path.suffix != SUFFIX if path.is_file() else not any(path.rglob(f"*{SUFFIX}")):
        return False
    name, opener = _make_opener(list_row_files(path)[0])
    with open_parquet(name, opener) as file:
        return INPUTS in file.schema_arrow.names


def find_folder_form(path: Path) -> RowForm:
    return find_form(*_make_opener(list_row_files(path)[0]))


class PreparedRows:
    """A `SampleSource` of rows of Parquet files, in the order of `RowOrder`; thread-safe."""

    kept_files = 2  # open at once, at most
    files: Sequence[TokenFile] = ()  # those on this machine

    def __init__(
        self, files: Sequence[tuple[str, Opener]], sequence_length: int, has_labels: bool,
        shuffle_seed: bytes | None = None, vocab_size: int | None = None,
    ) -> None:  # fmt: skip
        self.sequence_length = sequence_length
        self.token_size_bytes = LABELLED_BYTES if has_labels else 4
        self._has_labels = has_labels
        self._vocab_size = vocab_size
        self._groups = [group for name, opener in files for group in self._list_groups(name, opener)]
        self._order = RowOrder([group.rows for group in self._groups], shuffle_seed)
        self.num_sequences = self._order.num_sequences
        if not self.num_sequences:
            raise DataError(f"{', '.join(name for name, _ in files)[:200]}: no rows")
        self._decoded: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._lock = threading.Lock()

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        """The rows `start` to `end`, both included; with labels each token is three numbers (`psyche.wire.data`)."""
        words = self.sequence_length * self.token_size_bytes // 4
        out = np.empty((count_rows(start, end, words), words), dtype=np.uint32)
        numbers, rows = self._order.find(np.arange(start, end + 1, dtype=np.int64))
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            out[chosen] = self._get_group(number)[rows[chosen]]
        return out

    def check_vocabulary(self) -> None:
        """Check the first rows before anybody trains on them; the others are checked as they are read."""
        self._get_group(0)

    def _list_groups(self, name: str, opener: Opener) -> list[_Group]:
        with open_parquet(name, opener) as file:
            columns = [INPUTS, *(["labels"] if self._has_labels else ())]
            there = file.schema_arrow.names
            for column in columns:
                if column not in there:
                    raise DataError(f"{name}: has no column {column!r} (there are: {', '.join(there[:12])})")
            columns += [column for column in _OPTIONAL if self._has_labels and column in there]
            found: list[_Group] = []
            first = 0
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                numbers = max(group.column(column).num_values for column in range(group.num_columns))
                if max(numbers, group.num_rows * self.sequence_length) > MAX_GROUP_NUMBERS:
                    raise DataError(
                        f"{name}: row group {number} has {group.num_rows} rows with {numbers} numbers, at most "
                        f"{MAX_GROUP_NUMBERS} fit into memory at once; write it with a smaller row_group_size"
                    )
                found.append(_Group(name, opener, number, group.num_rows, first, tuple(columns)))
                first += group.num_rows
            return found

    def _get_group(self, number: int) -> NDArray[np.uint32]:
        with self._lock:
            if number not in self._decoded:
                self._decoded[number] = self._decode(self._groups[number])
            self._decoded.move_to_end(number)
            while len(self._decoded) > _KEPT_GROUPS:
                self._decoded.popitem(last=False)
            return self._decoded[number]

    def _decode(self, group: _Group) -> NDArray[np.uint32]:
        with open_parquet(group.name, group.opener) as file:
            table = file.read_row_group(group.number, columns=list(group.columns), use_threads=False)
            lists = {name: _Lists(group, name, table.column(name)) for name in group.columns}
        length, shape = self.sequence_length, (group.rows, self.sequence_length)
        for name, column in lists.items():
            if name != "sequence_lengths":
                column.demand_sizes(length)
        ids = lists[INPUTS].values.reshape(shape)
        if not self._has_labels:
            return self._check(group, ids)
        begins = np.zeros(shape, dtype=bool)
        begins[:, 0] = True
        if "sequence_lengths" in lists:
            begins.reshape(-1)[lists["sequence_lengths"].find_starts(length)] = True
        places = np.arange(length) - np.maximum.accumulate(np.where(begins, np.arange(length), 0), axis=1)
        if "position_ids" in lists:
            places = lists["position_ids"].values.reshape(shape)
        labels = lists["labels"].values.reshape(shape)
        whole = self._check(group, np.stack([ids, labels, np.where(begins, places + BEGINS, places)], axis=-1))
        return whole.reshape(group.rows, -1)

    def _check(self, group: _Group, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        check_tokens(rows, self._vocab_size, lambda row: f"{group.name}: row {group.first_row + row}")
        return (rows & 0xFFFF_FFFF).astype(np.uint32)


def check_tokens(rows: NDArray[np.int64], vocab_size: int | None, name_row: Callable[[int], str]) -> None:
    """Check tokens [rows, length] or, with labels, [rows, length, 3]; `name_row` names a row in errors."""
    limit = vocab_size or 1 << 31

    def check(wrong: NDArray[np.bool_], what: str, values: NDArray[np.int64], most: int) -> None:
        if wrong.any():
            row, column = (int(one) for one in np.argwhere(wrong)[0])
            text = f"{name_row(row)}: {what} {values[row, column]} at position {column} is not below {most}"
            raise UnusableDataError(f"{text} or is negative")

    ids = rows if rows.ndim == 2 else rows[..., 0]
    check((ids < 0) | (ids >= limit), "token", ids, limit)
    if rows.ndim == 3:
        labels, places = rows[..., 1], rows[..., 2] & (BEGINS - 1)
        check((labels != NOT_COUNTED) & ((labels < 0) | (labels >= limit)), "label", labels, limit)
        length = rows.shape[1]
        check((places >= length) | (rows[..., 2] < 0), "position", places, length)


class _Lists:
    """A column of lists of whole numbers."""

    def __init__(self, group: _Group, name: str, column: Any) -> None:
        import pyarrow as pa
        from pyarrow import compute as functions

        compute: Any = functions  # its functions are made when it is loaded
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_integer(kind.value_type):
            raise DataError(f"{group.name}: column {name!r} is {kind}, must be lists of whole numbers")
        flat = compute.list_flatten(column)
        if column.null_count or flat.null_count:
            raise DataError(f"{group.name}: column {name!r} has nulls")
        self._group, self._name = group, name
        self._sizes: NDArray[np.int64] = compute.list_value_length(column).to_numpy().astype(np.int64)
        self.values: NDArray[np.int64] = flat.to_numpy().astype(np.int64)

    def demand_sizes(self, length: int) -> None:
        if (self._sizes != length).any():
            row = int(np.argmax(self._sizes != length))
            self._refuse(row, f"has {self._sizes[row]} numbers, must have {length}, the model's max_seq_len")

    def find_starts(self, length: int) -> NDArray[np.int64]:
        """Where sequences begin, counted through all rows, whose sequences must have `length` tokens together."""
        rows = np.repeat(np.arange(len(self._sizes)), self._sizes)
        if (self.values < 1).any():
            self._refuse(int(rows[np.argmax(self.values < 1)]), "has a length below 1")
        sums = np.zeros(len(self._sizes), dtype=np.int64)
        np.add.at(sums, rows, np.minimum(self.values, length + 1))
        if (sums != length).any():
            row = int(np.argmax(sums != length))
            self._refuse(row, f"does not add up to {length}, the model's max_seq_len")
        return np.cumsum(self.values) - self.values

    def _refuse(self, row: int, what: str) -> None:
        raise UnusableDataError(f"{self._group.name}: row {self._group.first_row + row}: {self._name} {what}")


@contextmanager
def open_parquet(name: str, opener: Opener) -> "Iterator[parquet.ParquetFile]":
    """Open a Parquet file; what fails while it is open is a DataError with its name."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with opener() as stream, parquet.ParquetFile(stream, pre_buffer=False) as file:
            yield file
    except pa.ArrowException as error:
        raise DataError(f"{name}: cannot be read as Parquet: {error}") from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from error
