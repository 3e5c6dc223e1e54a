"""Prepared rows of a data set of the Hub, read as they are needed."""

import io
from contextlib import aclosing
from functools import partial
from typing import cast

import trio

from psyche.core.encoding.data_manifest import WHOLE_BYTES, FindManifest
from psyche.core.state.state import ZERO32
from psyche.data.order import RemoteSize
from psyche.data.prepared.rows import Opener, PreparedRows, RowForm, find_form
from psyche.data.stored import find_tokens, judge
from psyche.errors import DataError, StorageError
from psyche.storage.hub import HubStorage
from psyche.storage.port import MAX_RANGE_BYTES, Storage, StorageOptions, StoredFile


class HubRows:
    """A `DataProvider` of the Parquet files of a data set: owner/name, with @ and a revision.

    They are listed when the first rows are read; until that has worked, each `get` tries it again.
    """

    def __init__(
        self, address: str, options: StorageOptions, sequence_length: int, *, has_labels: bool, vocab_size: int | None,
        root: bytes = ZERO32, find_manifest: FindManifest | None = None,
    ) -> None:  # fmt: skip
        repo_id, _, revision = address.partition("@")
        try:
            self._storage = HubStorage(repo_id, revision or None, options, kind="dataset")
        except StorageError as error:
            raise DataError(f"data location {address!r}: is no folder here, and no data set: {error}") from error
        self._repo_id = repo_id
        self.sequence_length = sequence_length
        self._has_labels = has_labels
        self._vocab_size = vocab_size
        self._root = root
        self._find_manifest = find_manifest
        self._rows: PreparedRows | None = None
        self._size_bytes = 0
        self._lock = trio.Lock()

    async def measure(self) -> RemoteSize:
        rows = await self._open()
        pinned = f"{self._repo_id}@{self._storage.revision}"
        return RemoteSize(self._storage.address, rows.num_sequences, self._size_bytes, pinned)

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:  # noqa: ARG002 (port)
        rows = await self._open()
        try:
            return await trio.to_thread.run_sync(lambda: rows.samples(start, end).astype("<u4", copy=False).tobytes())
        except StorageError as error:
            raise DataError(str(error)) from error

    async def find_form(self) -> RowForm:
        """The length of the rows and whether they have labels, by the first one."""
        try:
            return await trio.to_thread.run_sync(find_form, *(await self._list())[0])
        except StorageError as error:
            raise DataError(str(error)) from error

    async def aclose(self) -> None:
        await self._storage.aclose()

    async def _open(self) -> PreparedRows:
        async with self._lock:
            if self._rows is None:
                try:
                    files = await self._list()
                    self._rows = await trio.to_thread.run_sync(
                        PreparedRows, files, self.sequence_length, self._has_labels, None, self._vocab_size
                    )
                except StorageError as error:
                    raise DataError(str(error)) from error
            return self._rows

    async def _list(self) -> list[tuple[str, Opener]]:
        files, manifest = await find_tokens(self._storage, None, WHOLE_BYTES, self._root, self._find_manifest)
        storage = judge(self._storage, self._storage, manifest)
        self._size_bytes = sum(one.file.size_bytes for one in files)
        return [(f"{storage.address}/{one.file.name}", partial(open_stored, storage, one.file)) for one in files]


async def find_remote_form(address: str, options: StorageOptions) -> RowForm:
    """The form of the rows of a data set of the Hub, by the first one.

    Raises:
        DataError: they cannot be read.
    """
    async with aclosing(HubRows(address, options, 1, has_labels=False, vocab_size=None)) as rows:
        return await rows.find_form()


def open_stored(storage: Storage, file: StoredFile, buffer_bytes: int = 1 << 16) -> io.BufferedReader:
    """Open a stored file for a library that reads in a thread of trio's."""
    return io.BufferedReader(_StoredStream(storage, file), buffer_bytes)


class _StoredStream(io.RawIOBase):
    def __init__(self, storage: Storage, file: StoredFile) -> None:
        self._storage, self._file, self._place = storage, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size_bytes}[whence]
        return self._place

    def readinto(self, buffer: object, /) -> int:
        view = memoryview(cast("bytearray", buffer)).cast("B")
        end = min(self._place + len(view), self._place + MAX_RANGE_BYTES, self._file.size_bytes)
        if end <= self._place:
            return 0
        raw = trio.from_thread.run(self._storage.read, self._file, self._place, end)
        view[: len(raw)] = raw
        self._place = end
        return len(raw)
