"""Where fetched chunks go: into memory, or into a part file that survives a crash."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from psyche.errors import NetworkError
from psyche.network.blobstore import RunIo
from psyche.network.blobwire import HASH_BYTES, compute_chunk_count, compute_range_bytes
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash

MIN_FREE_BYTES: Final = 64 << 20  # what is left on the disk for everybody else


class SinkError(NetworkError):
    """The disk is full, broken or not writable: no source can help."""


class Sink(Protocol):
    """The place of one blob."""

    async def open(self, hashes: bytes) -> list[int]:
        """Prepare the place; returns the chunks that are already there and right."""
        ...

    async def write(self, chunk: int, data: bytes) -> None:
        """Store a chunk that was checked."""
        ...

    async def finish(self) -> None:
        """All chunks are there: make them last."""
        ...

    async def close(self) -> None:
        """Let go of files; a part file stays for the next attempt."""
        ...


class MemorySink:
    """A payload in memory; `data` is whole after `finish`."""

    def __init__(self, size_bytes: int) -> None:
        self.data = b""
        self._chunks: list[bytes] = [b""] * compute_chunk_count(size_bytes)

    async def open(self, hashes: bytes) -> list[int]:  # noqa: ARG002 - the protocol's argument
        """Nothing is there yet."""
        return []

    async def write(self, chunk: int, data: bytes) -> None:
        """Keep the chunk."""
        self._chunks[chunk] = data

    async def finish(self) -> None:
        """Put the chunks together."""
        self.data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []

    async def close(self) -> None:
        """Nothing to let go of."""


class PartFile:
    """`path.part` with `path.map` beside it: the blob's id, then one byte per chunk.

    What the map marks is hashed again when an attempt resumes: after a power cut the map may be
    newer than the data.
    """

    def __init__(self, blob_id: bytes, size_bytes: int, path: Path, run_io: RunIo) -> None:
        self._id = blob_id
        self._size = size_bytes
        self._path = path
        self._run_io = run_io
        self._part = -1
        self._map = -1

    async def open(self, hashes: bytes) -> list[int]:
        """Open or resume the part file.

        Raises:
            SinkError: the folder cannot be written or the disk has too little room.
        """
        return await self._run(self._open, hashes)

    async def write(self, chunk: int, data: bytes) -> None:
        """Write a checked chunk, then mark it.

        Raises:
            SinkError: the disk is full or broken.
        """
        await self._run(self._write, chunk, data)

    async def finish(self) -> None:
        """Flush, give the file its name, remove the map.

        Raises:
            SinkError: the disk is full or broken.
        """
        await self._run(self._finish)

    async def close(self) -> None:
        """Close the files; they stay for the next attempt."""
        for descriptor in (self._part, self._map):
            if descriptor >= 0:
                os.close(descriptor)
        self._part = self._map = -1

    async def _run(self, function: Callable[..., Any], *args: object) -> Any:
        try:
            return await self._run_io(function, *args)
        except OSError as error:
            raise SinkError(f"blob file {self._path}: {error.strerror or error}") from error

    def _open(self, hashes: bytes) -> list[int]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part, marks = _beside(self._path, ".part"), _beside(self._path, ".map")
        known = marks.read_bytes() if part.exists() and marks.exists() else b""
        if known[:HASH_BYTES] != self._id:
            known = b""
        _check_room(self._path.parent, self._size)
        self._part = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        self._map = os.open(marks, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._part, self._size)
        os.ftruncate(self._map, 0)
        count = compute_chunk_count(self._size)
        os.pwrite(self._map, self._id + bytes(count), 0)
        return [
            chunk
            for chunk, mark in enumerate(known[HASH_BYTES : HASH_BYTES + count])
            if mark and self._resume(chunk, hashes)
        ]

    def _resume(self, chunk: int, hashes: bytes) -> bool:
        size = compute_range_bytes(self._size, chunk, 1)
        data = os.pread(self._part, size, chunk * BLOB_CHUNK_BYTES)
        if blake3_hash(data) != hashes[chunk * HASH_BYTES : (chunk + 1) * HASH_BYTES]:
            return False
        os.pwrite(self._map, b"\x01", HASH_BYTES + chunk)
        return True

    def _write(self, chunk: int, data: bytes) -> None:
        os.pwrite(self._part, data, chunk * BLOB_CHUNK_BYTES)
        os.pwrite(self._map, b"\x01", HASH_BYTES + chunk)

    def _finish(self) -> None:
        os.fsync(self._part)
        _beside(self._path, ".part").replace(self._path)
        _beside(self._path, ".map").unlink(missing_ok=True)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _check_room(folder: Path, size_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size_bytes + MIN_FREE_BYTES:
        raise OSError(0, f"{size_bytes} bytes are to come, {free} are free")
