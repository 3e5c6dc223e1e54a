"""Sinks for fetched chunks: memory, or files that survive a crash. No file stays open between chunks."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from psyche.durable import sync_file
from psyche.errors import NetworkError
from psyche.network.blobs.messages import HASH_BYTES, compute_chunk_count, compute_range_bytes
from psyche.network.blobs.store import RunIo
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash

MIN_FREE_BYTES: Final = 64 << 20  # disk space that stays free for other programs


class SinkError(NetworkError):
    """The disk is full, broken or not writable, so that trying another source does not help."""


class Sink(Protocol):
    """The destination of one blob; every method raises `SinkError` if it cannot be written."""

    async def open(self, hashes: bytes) -> list[int]:
        """Return the chunks that are already present and valid."""
        ...

    async def write(self, chunk: int, data: bytes) -> None: ...

    async def finish(self) -> None:
        """Make the complete blob durable."""
        ...


class MemorySink:
    def __init__(self, size_bytes: int) -> None:
        self.data = b""
        self._chunks: list[bytes] = [b""] * compute_chunk_count(size_bytes)

    async def open(self, hashes: bytes) -> list[int]:  # noqa: ARG002 - the protocol's argument
        return []

    async def write(self, chunk: int, data: bytes) -> None:
        self._chunks[chunk] = data

    async def finish(self) -> None:
        self.data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []


class PartFile:
    """`path.part` with `path.map` beside it: the blob's id, then one byte per chunk.

    Chunks that the map marks are hashed again when a fetch resumes, because after a power cut the map may
    be newer than the data. A blob of one chunk needs no map.
    """

    def __init__(self, blob_id: bytes, size_bytes: int, path: Path, run_io: RunIo) -> None:
        self._id = blob_id
        self._size = size_bytes
        self._chunks = compute_chunk_count(size_bytes)
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._map = path.with_name(path.name + ".map")
        self._run_io = run_io

    async def open(self, hashes: bytes) -> list[int]:
        return await self._run(self._open, hashes)

    async def write(self, chunk: int, data: bytes) -> None:
        await self._run(self._write, chunk, data)

    async def finish(self) -> None:
        await self._run(self._finish)

    async def _run(self, function: Callable[..., Any], *args: object) -> Any:
        try:
            return await self._run_io(function, *args)
        except OSError as error:
            raise SinkError(f"blob file {self._path}: {error.strerror or error}") from error

    def _open(self, hashes: bytes) -> list[int]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        marked = self._read_map()
        with self._part.open("ab") as part:
            part.truncate(self._size)
        resumed = [chunk for chunk in marked if self._is_right(chunk, hashes)]
        if self._chunks > 1:
            marks = bytearray(self._chunks)
            for chunk in resumed:
                marks[chunk] = 1
            self._map.write_bytes(self._id + marks)
        return resumed

    def _read_map(self) -> list[int]:
        if not self._part.exists() or not self._map.exists():
            return []
        known = self._map.read_bytes()
        if known[:HASH_BYTES] != self._id:
            return []
        return [chunk for chunk, mark in enumerate(known[HASH_BYTES : HASH_BYTES + self._chunks]) if mark]

    def _is_right(self, chunk: int, hashes: bytes) -> bool:
        with self._part.open("rb") as part:
            data = os.pread(part.fileno(), compute_range_bytes(self._size, chunk, 1), chunk * BLOB_CHUNK_BYTES)
        return blake3_hash(data) == hashes[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]

    def _write(self, chunk: int, data: bytes) -> None:
        _write_at(self._part, data, chunk * BLOB_CHUNK_BYTES)
        if self._chunks > 1:
            _write_at(self._map, b"\x01", HASH_BYTES + chunk)

    def _finish(self) -> None:
        sync_file(self._part)
        self._part.replace(self._path)
        self._map.unlink(missing_ok=True)


def check_room(folder: Path, size_bytes: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise SinkError(f"folder {folder}: {error.strerror}") from error
    if free < size_bytes + MIN_FREE_BYTES:
        raise SinkError(f"folder {folder}: {size_bytes} bytes needed, {free} bytes free; free up disk space")


def _write_at(path: Path, data: bytes, offset: int) -> None:
    with path.open("r+b") as file:
        view = memoryview(data)
        while view:
            written = os.pwrite(file.fileno(), view, offset)
            view, offset = view[written:], offset + written
