"""A reply with rows, read from the source in parts as the connection takes them (K7).

A peer that reads slowly or not at all therefore holds only one part in memory.
"""

from typing import Final

import numpy as np

from psyche.data.provider import SampleSource
from psyche.wire.data import FetchRequest, encode_rows_head

PART_BYTES: Final = 64 << 10  # 512 connections hold at most 32 MiB of rows


class RowsReply:
    """The frame that answers a request whose rows fit into one frame."""

    def __init__(self, source: SampleSource, request: FetchRequest) -> None:
        self._source = source
        self._start = request.start
        self._row_bytes = source.sequence_length * source.token_size_bytes
        self._ids_bytes = (request.end - request.start + 1) * self._row_bytes
        self._head = encode_rows_head(
            request.start, request.end, source.sequence_length, source.token_size_bytes, self._ids_bytes
        )
        self.size_bytes = len(self._head) + self._ids_bytes

    def read_first(self) -> bytes:
        """Read the first part of the frame: the head and the first ids."""
        return self._head + self._read_ids(0)

    def read(self, offset_bytes: int) -> bytes:
        return self._read_ids(offset_bytes - len(self._head))

    def _read_ids(self, offset_bytes: int) -> bytes:
        """Read at most `PART_BYTES` of ids; a longer row is read again for each of its parts."""
        size_bytes = min(PART_BYTES, self._ids_bytes - offset_bytes)
        first, skipped_bytes = divmod(offset_bytes, self._row_bytes)
        last = (offset_bytes + size_bytes - 1) // self._row_bytes
        rows = self._source.samples(self._start + first, self._start + last)
        ids = rows.astype(f"<u{self._source.token_size_bytes}", copy=False).reshape(-1).view(np.uint8)
        return ids[skipped_bytes : skipped_bytes + size_bytes].tobytes()
