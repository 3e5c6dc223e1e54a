"""Bytes of a storage that have the hashes of the run's data manifest, and no others (D1, B22)."""

from collections.abc import Mapping
from typing import Final

import structlog
import trio

from psyche.core.encoding.data_manifest import DATA_CHUNK_BYTES
from psyche.core.state.limits import HASH_BYTES
from psyche.errors import StorageError
from psyche.storage.port import Storage, StorageWrapper, StoredFile, check_range
from psyche.wire.crypto import compute_chunk_hashes

_log: Final = structlog.get_logger("psyche.storage")


class JudgedStorage(StorageWrapper):
    """A storage whose files are read in whole MiBs, each judged before a byte of it counts.

    `hashes`: the BLAKE3 of each MiB of a file, one after the other, by the file's name. `source` is asked for what
    `storage`, which may read through a cache, gives wrong.
    """

    def __init__(self, storage: Storage, hashes: Mapping[str, bytes], source: Storage) -> None:
        super().__init__(storage)
        self._source = source
        self._hashes = hashes

    async def read(self, file: StoredFile, start: int, end: int) -> bytes:
        """Read bytes that are judged; those that are wrong are asked for once more.

        Raises:
            StorageError: as the storage, or it gives other bytes.
        """
        check_range(self.address, file, start, end)
        number = start // DATA_CHUNK_BYTES
        first, last = number * DATA_CHUNK_BYTES, min(-(-end // DATA_CHUNK_BYTES) * DATA_CHUNK_BYTES, file.size_bytes)
        wrong = ""
        for storage in (self._storage, self._source):
            raw = await storage.read(file, first, last)
            found = await trio.to_thread.run_sync(compute_chunk_hashes, raw)
            wrong = self._find_wrong(file, number, found)
            if not wrong:
                return raw[start - first : end - first]
            _log.warning("data_differs", place=f"{self.address}/{file.name}", proof=wrong)
        what = "gives other bytes than the run's data_root stands for"
        raise StorageError(f"{self.address}/{file.name}: {what}: {wrong}")

    def _find_wrong(self, file: StoredFile, number: int, found: bytes) -> str:
        """The proof that a MiB from `number` on is wrong: with the manifest on record, anybody can check it."""
        for at in range(0, len(found), HASH_BYTES):
            place = number * HASH_BYTES + at
            digest, right = found[at : at + HASH_BYTES], self._hashes[file.name][place : place + HASH_BYTES]
            if digest != right:
                return f"BLAKE3 of MiB {place // HASH_BYTES} is {digest.hex()}, not {right.hex()}"
        return ""
