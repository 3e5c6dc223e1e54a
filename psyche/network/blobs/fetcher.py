"""The node's fetches: payloads to memory and files to disk, a few at a time; what is fetched is offered to peers."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from psyche.errors import NetworkError, WireError
from psyche.network.blobs.fetch import FetchJob
from psyche.network.blobs.messages import check_blob_size
from psyche.network.blobs.planner import Target
from psyche.network.blobs.sinks import MemorySink, PartFile, check_room
from psyche.network.blobs.sources import SourceBook
from psyche.network.blobs.store import BlobStore, RunIo
from psyche.network.limits import MAX_BLOBS_AT_ONCE, NetworkLimits
from psyche.network.peers import PeerTable
from psyche.wire.crypto import blob_id_of
from psyche.wire.line.turns import take

Progress = Callable[[int], None]  # called with the bytes present


class Fetcher:
    def __init__(self, key: bytes, store: BlobStore, peers: PeerTable, limits: NetworkLimits, run_io: RunIo) -> None:
        self.book = SourceBook(limits)
        self._key = key
        self._store = store
        self._peers = peers
        self._limits = limits
        self._run_io = run_io
        self._round = (0, 0)
        self._locks: dict[bytes, trio.Lock] = {}
        self._fetches = trio.Semaphore(limits.fetches)

    def begin_round(self, epoch: int, height: int) -> None:
        self._round = (epoch, height)

    @asynccontextmanager
    async def _take_turn(self, blob_id: bytes, deadline: float) -> AsyncIterator[None]:
        """Allow one fetch per blob at a time, and a bounded number in all."""
        name = blob_id.hex()[:16]
        lock = self._locks.setdefault(blob_id, trio.Lock())
        try:
            if not await take(lock, deadline):
                raise NetworkError(f"blob {name}: another fetch of it took too long")
            try:
                if not await take(self._fetches, deadline):
                    raise NetworkError(f"blob {name}: other fetches took too long")
                try:
                    yield
                finally:
                    self._fetches.release()
            finally:
                lock.release()
        finally:
            if not lock.locked():
                self._locks.pop(blob_id, None)

    async def fetch(self, blob_id: bytes, sources: Sequence[bytes], size: int, deadline: float) -> bytes:
        check_blob_size(size)
        async with self._take_turn(blob_id, deadline):
            found = await self._store.get_data(blob_id)
            if found is not None and len(found) == size:
                return found
            return await self._fetch_payload(blob_id, sources, size, deadline)

    async def _fetch_payload(self, blob_id: bytes, sources: Sequence[bytes], size: int, deadline: float) -> bytes:
        if not size:
            _check_empty(blob_id)
            return b""
        await self._store.reserve(size)
        try:
            sink = MemorySink(size)
            job = self._build_job(
                [Target(blob_id, size, sink)], sources, parallel=False, is_wanted=self._has_waiting_fetches
            )
            await job.run(deadline)
        finally:
            self._store.release(size)
        epoch, height = self._round
        await self._store.add_bytes(sink.data, (epoch, height + self._limits.keep_fetched_rounds), is_fetched=True)
        return sink.data

    def _build_job(
        self, targets: list[Target], sources: Sequence[bytes], *, parallel: bool,
        progress: Progress | None = None, is_wanted: Callable[[], bool] = lambda: False,
    ) -> FetchJob:  # fmt: skip
        others = dict.fromkeys(sources)
        others.pop(self._key, None)
        return FetchJob(
            targets, list(others), self._peers, self.book, parallel=parallel, progress=progress, is_wanted=is_wanted
        )

    def _has_waiting_fetches(self) -> bool:
        return self._fetches.statistics().tasks_waiting > 0

    async def fetch_many(
        self, blobs: Sequence[tuple[bytes, int]], sources: Sequence[bytes], folder: Path, deadline: float,
        progress: Progress | None,
    ) -> dict[bytes, Path]:  # fmt: skip
        """Fetch blobs, given as (id, size in bytes), from all sources at once; keep files that are complete already."""
        if len(blobs) > MAX_BLOBS_AT_ONCE:
            raise WireError(f"fetch: {len(blobs)} blobs, at most {MAX_BLOBS_AT_ONCE}")
        paths = {blob_id: folder / blob_id.hex() for blob_id, _ in blobs}
        targets: list[Target] = []
        present = 0
        for blob_id, size in dict(blobs).items():
            check_blob_size(size)
            path = paths[blob_id]
            if not size:
                _check_empty(blob_id)
            if await self._is_there(blob_id, size, path):
                present += size
            else:
                targets.append(Target(blob_id, size, PartFile(blob_id, size, path, self._run_io)))
        if paths:
            await self._run_io(check_room, folder, sum(t.size_bytes for t in targets))
        await self._build_job(targets, sources, parallel=True, progress=_add(progress, present)).run(deadline)
        for target in targets:
            await self._store.add_file(paths[target.blob_id], None)
        return paths

    async def _is_there(self, blob_id: bytes, size: int, path: Path) -> bool:
        if not await self._run_io(path.is_file) or (await self._run_io(path.stat)).st_size != size:
            return False
        found = await self._store.add_file(path, None)
        if found != blob_id:
            self._store.withdraw(found)
        return found == blob_id


def _check_empty(blob_id: bytes) -> None:
    if blob_id != blob_id_of(b""):
        raise NetworkError(f"blob {blob_id.hex()[:16]}: its size is 0, but its id is not that of an empty blob")


def _add(progress: Progress | None, present: int) -> Progress | None:
    if progress is None:
        return None
    progress(present)
    return lambda fetched: progress(present + fetched)
