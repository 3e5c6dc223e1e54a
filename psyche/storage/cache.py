"""A cache of files' bytes on disk, with a limit; processes of one machine may share it."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import structlog
import trio
from blake3 import blake3

from psyche.durable import make_folder, read_file, replace_file
from psyche.storage.port import Storage, StorageOptions, StorageWrapper, StoredFile, check_range, read_ranges

CHUNK_BYTES: Final = 1 << 20
CHUNKS_FOLDER: Final = "chunks"  # in the cache's folder
_SCANS: Final = 16  # the folder is looked through after each such part of the limit that this process has written
_KEPT: Final = 0.9  # of the limit, after chunks were removed
_log: Final = structlog.get_logger("psyche.storage")


class DiskCache:
    """Chunks of files, each in a file of its own with its BLAKE3 before it: whatever else is there is fetched again.

    Files without a version are not kept. Where the disk is full or cannot be written, nothing is.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self.limit_bytes = limit_bytes
        self._unseen_bytes = limit_bytes  # written since the folder was looked through; at first that is due
        self._fetching: dict[Path, trio.Event] = {}
        self._is_told = False

    async def read(self, storage: Storage, file: StoredFile, start: int, end: int) -> bytes:
        """Read as the storage does; chunks that are not on disk are fetched whole, and by one of those who want them.

        Raises:
            StorageError: as the storage.
        """
        check_range(storage.address, file, start, end)
        if not file.version or self.limit_bytes < CHUNK_BYTES:
            return await storage.read(file, start, end)
        paths = {
            number: self._find(storage, file, number) for number in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES))
        }
        chunks: dict[int, bytes] = {}
        while missing := [number for number in paths if number not in chunks]:
            others = [self._fetching[paths[number]] for number in missing if paths[number] in self._fetching]
            mine = {number: paths[number] for number in missing if paths[number] not in self._fetching}
            self._fetching |= dict.fromkeys(mine.values(), event := trio.Event())
            try:
                chunks |= await trio.to_thread.run_sync(_load, file, mine)
                absent = [number for number in mine if number not in chunks]
                ranges = [(file, n * CHUNK_BYTES, min((n + 1) * CHUNK_BYTES, file.size_bytes)) for n in absent]
                fetched = dict(zip(absent, await read_ranges(storage, ranges), strict=True))
                await trio.to_thread.run_sync(self._keep, {mine[number]: raw for number, raw in fetched.items()})
                chunks |= fetched
            finally:
                for path in mine.values():
                    del self._fetching[path]
                event.set()
            for other in others:
                await other.wait()
        whole = b"".join(chunks[number] for number in paths)
        first = start // CHUNK_BYTES * CHUNK_BYTES
        return whole[start - first : end - first]

    def _find(self, storage: Storage, file: StoredFile, number: int) -> Path:
        key = blake3("\0".join((storage.address, file.name, file.version, str(number))).encode()).hexdigest()
        return self._folder / key[:2] / key[2:]

    def _keep(self, chunks: dict[Path, bytes]) -> None:
        try:
            for path, chunk in chunks.items():
                make_folder(path.parent)
                replace_file(path, blake3(chunk).digest() + chunk, path.with_suffix(f".{token_hex(4)}.part"))
                self._unseen_bytes += len(chunk)
            if self._unseen_bytes >= self.limit_bytes // _SCANS:
                self._unseen_bytes = 0
                self._remove_oldest()
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                _log.warning("cache_not_written", folder=os.fspath(self._folder), reason=error.strerror)

    def _remove_oldest(self) -> None:
        """Remove the chunks that were used longest ago; what a killed process left unfinished gets old as well."""
        found: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):  # removed by another process
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        used_bytes = sum(size_bytes for _, size_bytes, _ in found)
        kept_bytes = self.limit_bytes * (_KEPT if used_bytes > self.limit_bytes else 1.0)
        for _, size_bytes, path in sorted(found):
            if used_bytes <= kept_bytes:
                break
            path.unlink(missing_ok=True)
            used_bytes -= size_bytes


def open_cache(options: StorageOptions) -> DiskCache | None:
    """The cache of these settings; None: nothing is to be kept."""
    return options.cache_dir and DiskCache(options.cache_dir / CHUNKS_FOLDER, int(options.cache_gb * 1e9))


class CachedStorage(StorageWrapper):
    """A storage whose bytes are read through a cache."""

    def __init__(self, storage: Storage, cache: DiskCache) -> None:
        super().__init__(storage)
        self._cache = cache

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        return await self._cache.read(self._storage, file, start, end)


def _load(file: StoredFile, paths: dict[int, Path]) -> dict[int, bytes]:
    """The chunks that are on disk and whole."""
    chunks: dict[int, bytes] = {}
    for number, path in paths.items():
        with suppress(OSError):
            raw = read_file(path, CHUNK_BYTES + 32)
            size_bytes = min(CHUNK_BYTES, file.size_bytes - number * CHUNK_BYTES)
            if len(raw) == 32 + size_bytes and blake3(raw[32:]).digest() == raw[:32]:
                chunks[number] = raw[32:]
                os.utime(path)
    return chunks
