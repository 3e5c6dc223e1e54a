"""Rows written as Parquet, in the form of the original's prepared data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from psyche.data.prepared.packing import Row

if TYPE_CHECKING:
    from pyarrow import parquet

MOST_GROUP_ROWS: Final = 1_000
GROUP_TOKENS: Final = 1 << 21  # in memory at once
FILE_TOKENS: Final = 1 << 27
_NUMBERS: Final = {"inputs": "i4", "labels": "i4", "position_ids": "i4", "sequence_lengths": "i8"}


class RowWriter:
    """Writes rows as Parquet files of a new data set's split `train`; memory holds one group of rows."""

    def __init__(self, folder: Path, length: int) -> None:
        self._folder = folder
        self._group_rows = max(1, min(MOST_GROUP_ROWS, GROUP_TOKENS // length))
        self._file_rows = max(self._group_rows, FILE_TOKENS // length // self._group_rows * self._group_rows)
        self._rows: list[Row] = []
        self._paths: list[Path] = []
        self._writer: parquet.ParquetWriter | None = None
        self.count = 0

    def add(self, row: Row) -> None:
        self._rows.append(row)
        self.count += 1
        if len(self._rows) == self._group_rows:
            self._flush()
        if not self.count % self._file_rows:
            self.close()

    def finish(self) -> list[Path]:
        """Write what is left; name the files as data sets have them, now that their number is known."""
        self._flush()
        self.close()
        names = [f"train-{number:05}-of-{len(self._paths):05}.parquet" for number in range(len(self._paths))]
        return [path.rename(self._folder / name) for path, name in zip(self._paths, names, strict=True)]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _flush(self) -> None:
        if not self._rows:
            return
        import pyarrow as pa
        from pyarrow import parquet

        columns: dict[str, Any] = {}
        for name, kind in _NUMBERS.items():
            parts = [np.asarray(getattr(row, name), kind) for row in self._rows]
            offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
            columns[name] = pa.LargeListArray.from_arrays(offsets, np.concatenate(parts))
        table = pa.table(columns)
        if self._writer is None:
            self._paths.append(self._folder / f"{len(self._paths):05}.part")
            self._writer = parquet.ParquetWriter(self._paths[-1], table.schema)
        self._writer.write_table(table)
        self._rows = []
