"""The blobs that a node offers: payloads in memory within a quota, and files that stay where they are.

A blob may be provided several times, each with its own expiry; it is dropped with the last of these
offers. Payloads that do not fit into memory move to files in the node's own folder, also within a quota.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from psyche.errors import NetworkError
from psyche.network.blobs.messages import check_blob_size, compute_chunk_count, compute_range_bytes
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, compute_blob_id
from psyche.wire.line.turns import AtOnce

Round = tuple[int, int]  # (epoch, height)
HASH_STEP_BYTES: Final = 16 << 20  # bytes of a file that one worker-thread call reads


class RunIo(Protocol):
    """Runs a blocking function: in a worker thread (`run_in_thread`), or in simulated time inline (`run_inline`).

    The indirection costs one more call: 1 % of the 98 us that a function in a thread takes, within the noise.
    """

    def __call__(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]: ...


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking function in this thread, because worker threads do not follow simulated time."""
    await trio.lowlevel.checkpoint()
    return function(*args)


async def run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await trio.to_thread.run_sync(function, *args)


@dataclass(slots=True)
class _Offer:
    """One `provide` call: where the bytes are and until when they are offered."""

    expires: Round | None
    path: Path | None = None
    stamp: tuple[int, int] = (0, 0)  # size and mtime: a file that changed no longer holds the blob


@dataclass(slots=True)
class _Entry:
    size_bytes: int
    hashes: bytes
    data: bytes | None = None
    spilled: Path | None = None
    is_fetched: bool = False  # may be dropped to make room, because other peers have it too
    offers: list[_Offer] = field(default_factory=list)

    @property
    def has_bytes(self) -> bool:
        return self.data is not None or self.spilled is not None


class BlobStore:
    """The blobs that this node can serve; `folder`, for payloads that do not fit into memory, is emptied at startup."""

    def __init__(self, folder: Path, *, memory_bytes: int, disk_bytes: int, run_io: RunIo) -> None:
        self._folder = folder
        self._memory_max = memory_bytes
        self._disk_max = disk_bytes
        self._run_io = run_io
        self._entries: dict[bytes, _Entry] = {}
        self._memory = 0
        self._reserved = 0
        self.disk_bytes = 0
        self._lock = trio.Lock()

    @property
    def memory_bytes(self) -> int:
        return self._memory + self._reserved

    def __contains__(self, blob_id: bytes) -> bool:
        return blob_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def clear_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.blob"):
            path.unlink(missing_ok=True)

    def get_chunk_list(self, blob_id: bytes) -> tuple[int, bytes] | None:
        entry = self._entries.get(blob_id)
        return (entry.size_bytes, entry.hashes) if entry else None

    async def add_bytes(self, data: bytes, expires: Round | None, *, is_fetched: bool = False) -> bytes:
        check_blob_size(len(data))
        hashes = await compute_hashes(data)
        blob_id = compute_blob_id(len(data), hashes)
        entry = self._entries.get(blob_id)
        if entry is None or not entry.has_bytes:
            await self.reserve(len(data))
            self.release(len(data))
            entry = self._entries.setdefault(blob_id, _Entry(len(data), hashes, is_fetched=is_fetched))
            if not entry.has_bytes:
                entry.data = data
                self._memory += len(data)
        entry.is_fetched = entry.is_fetched and is_fetched
        entry.offers.append(_Offer(expires))
        return blob_id

    async def add_file(self, path: Path, expires: Round | None) -> bytes:
        """The caller keeps the file and must not change it."""
        try:
            stamp = await self._run_io(_get_stamp, path)
            check_blob_size(stamp[0])
            hashes = await self._hash_file(path, stamp[0])
        except OSError as error:
            raise NetworkError(f"blob file {path}: {error.strerror}") from error
        blob_id = compute_blob_id(stamp[0], hashes)
        entry = self._entries.setdefault(blob_id, _Entry(stamp[0], hashes))
        entry.is_fetched = False
        entry.offers.append(_Offer(expires, path, stamp))
        return blob_id

    def withdraw(self, blob_id: bytes) -> None:
        """Take back the oldest offer of a blob; unknown ids are ignored."""
        entry = self._entries.get(blob_id)
        if entry is not None:
            entry.offers.pop(0)
            self._drop_if_empty(blob_id, entry)

    def expire(self, epoch: int, height: int) -> None:
        for blob_id, entry in list(self._entries.items()):
            entry.offers = [o for o in entry.offers if o.expires is None or o.expires >= (epoch, height)]
            self._drop_if_empty(blob_id, entry)

    async def read(self, blob_id: bytes, first: int, count: int) -> bytes | None:
        """Return the bytes of `count` chunks from `first` on, or None if the store no longer has them."""
        entry = self._entries.get(blob_id)
        if entry is None or first >= compute_chunk_count(entry.size_bytes):
            return None
        offset, size = first * BLOB_CHUNK_BYTES, compute_range_bytes(entry.size_bytes, first, count)
        if entry.data is not None:
            return entry.data[offset : offset + size]
        if entry.spilled is not None:
            return await self._run_io(_read_range, entry.spilled, offset, size, None)
        for offer in reversed(entry.offers):
            data = await self._run_io(_read_range, offer.path, offset, size, offer.stamp)
            if data is not None:
                return data
            if offer in entry.offers:
                entry.offers.remove(offer)
        self._drop_if_empty(blob_id, entry)
        return None

    async def get_data(self, blob_id: bytes) -> bytes | None:
        entry = self._entries.get(blob_id)
        if entry is None or entry.data is not None:
            return entry.data if entry else None
        return await self.read(blob_id, 0, compute_chunk_count(entry.size_bytes))

    async def reserve(self, size_bytes: int) -> None:
        """Reserve room for a payload of `size_bytes` before anything is allocated, until `release` or `add_bytes`."""
        async with AtOnce(self._lock):
            while self._memory + self._reserved + size_bytes > self._memory_max:
                victim = self._find_victim()
                if size_bytes > self._memory_max or victim is None:
                    raise NetworkError(
                        f"blob store: no room for {size_bytes} bytes: {self._memory + self._reserved} of "
                        f"{self._memory_max} in memory are taken"
                    )
                await self._move_out(victim)
            self._reserved += size_bytes

    def release(self, size_bytes: int) -> None:
        self._reserved -= size_bytes

    def _find_victim(self) -> bytes | None:
        held = [(b, e) for b, e in self._entries.items() if e.data]
        held.sort(key=lambda item: (not item[1].is_fetched, _get_last_round(item[1])))
        return held[0][0] if held else None

    async def _move_out(self, blob_id: bytes) -> None:
        """Free memory: drop a fetched payload, or move one of our own to disk."""
        entry = self._entries[blob_id]
        if entry.is_fetched:
            entry.offers.clear()
            self._drop_if_empty(blob_id, entry)
            return
        if self.disk_bytes + entry.size_bytes > self._disk_max:
            raise NetworkError(f"blob store: the disk quota of {self._disk_max} bytes is full")
        path, data = self._folder / f"{blob_id.hex()}.blob", entry.data
        try:
            await self._run_io(_write_file, path, data)
        except OSError as error:
            raise NetworkError(f"blob store: {path}: {error.strerror}") from error
        if self._entries.get(blob_id) is not entry:  # withdrawn in the meantime
            path.unlink(missing_ok=True)
            return
        entry.spilled, entry.data = path, None
        self.disk_bytes += entry.size_bytes
        self._memory -= entry.size_bytes

    def _drop_if_empty(self, blob_id: bytes, entry: _Entry) -> None:
        if entry.offers or self._entries.get(blob_id) is not entry:
            return
        del self._entries[blob_id]
        if entry.data is not None:
            self._memory -= entry.size_bytes
        if entry.spilled is not None:
            self.disk_bytes -= entry.size_bytes
            entry.spilled.unlink(missing_ok=True)

    async def _hash_file(self, path: Path, size_bytes: int) -> bytes:
        steps = range(0, size_bytes, HASH_STEP_BYTES)
        parts = [
            await self._run_io(_hash_range, path, offset, min(HASH_STEP_BYTES, size_bytes - offset)) for offset in steps
        ]
        return b"".join(parts)


async def compute_hashes(data: bytes) -> bytes:
    """Compute the chunk hashes of a payload, yielding between chunks: each blocks the event loop for 0.2 ms."""
    view = memoryview(data)
    parts: list[bytes] = []
    for start in range(0, len(view), BLOB_CHUNK_BYTES):
        parts.append(blake3_hash(view[start : start + BLOB_CHUNK_BYTES]))
        if len(parts) % 16 == 0:
            await trio.lowlevel.checkpoint()
    return b"".join(parts)


def _get_last_round(entry: _Entry) -> Round:
    never = (1 << 32, 0)
    return max((o.expires or never for o in entry.offers), default=never)


def _get_stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_range(path: Path | None, offset: int, size_bytes: int, stamp: tuple[int, int] | None) -> bytes | None:
    """Read the range; None if the file is gone, changed or too short."""
    if path is None:
        return None
    try:
        if stamp is not None and _get_stamp(path) != stamp:
            return None
        with path.open("rb") as file:
            data = os.pread(file.fileno(), size_bytes, offset)
    except OSError:
        return None
    return data if len(data) == size_bytes else None


def _hash_range(path: Path, offset: int, size_bytes: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        out: list[bytes] = []
        while size_bytes > 0:
            part = file.read(min(BLOB_CHUNK_BYTES, size_bytes))
            if not part:
                raise OSError(0, "the file became shorter while it was read")
            out.append(blake3_hash(part))
            size_bytes -= len(part)
    return b"".join(out)


def _write_file(path: Path, data: bytes) -> None:
    path.write_bytes(data)
