"""Turns for fetches: a fetch waits while another fetches the same blob, or while all places are taken."""

import trio

from psyche.errors import NetworkError
from psyche.wire.line.turns import take


class FetchTurn:
    """Allows one fetch per blob at a time, and a bounded number in all."""

    __slots__ = ("_blob_id", "_deadline", "_fetches", "_locks")

    def __init__(
        self, locks: dict[bytes, trio.Lock], fetches: trio.Semaphore, blob_id: bytes, deadline: float
    ) -> None:  # fmt: skip
        self._locks = locks
        self._fetches = fetches
        self._blob_id = blob_id
        self._deadline = deadline

    async def __aenter__(self) -> None:
        name = self._blob_id.hex()[:16]
        lock = self._locks.setdefault(self._blob_id, trio.Lock())
        try:
            if not await take(lock, self._deadline):
                raise NetworkError(f"blob {name}: another fetch of it took too long")
            try:
                if not await take(self._fetches, self._deadline):
                    raise NetworkError(f"blob {name}: other fetches took too long")
            except BaseException:
                lock.release()
                raise
        except BaseException:
            self._forget(lock)
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._fetches.release()
        lock = self._locks[self._blob_id]
        lock.release()
        self._forget(lock)

    def _forget(self, lock: trio.Lock) -> None:
        if not lock.locked():
            self._locks.pop(self._blob_id, None)
