"""Fetching blobs from peers: ranges are requested from free sources, every chunk is checked, and no source is trusted.

A source that stalls or goes away loses its ranges to another; one that sends a wrong chunk, a wrong
chunk list or a wrong length is banned for the run. Chunks are stored one by one as they come, so a
source that dies costs at most the chunk it was sending.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import trio

from psyche.errors import NetworkError, WireError
from psyche.network.blobs import messages
from psyche.network.blobs.planner import FIRST_RETRY_S, LONGEST_RETRY_S, AskedRange, RequestPlanner, Target
from psyche.network.blobs.ranges import Range, RangeScheduler
from psyche.network.blobs.sinks import SinkError
from psyche.network.blobs.sources import SourceBook
from psyche.network.peers import PeerTable
from psyche.network.streams import BLOB, ByteStream, Readable, Signal, read_exactly
from psyche.wire.crypto import compute_blob_id

LEAST_SOURCES: Final = 8  # how many sources are asked for a payload before its fetch gives way to a waiting one
LOOK_S: Final = 0.25  # how often an idle fetch checks whether another fetch waits


class _Lie(NetworkError):
    """The source sent invalid data and is to be banned."""


class SourceStalled(NetworkError):
    """The source did not deliver in time."""

    def __init__(self, message: str, waited_s: float) -> None:
        super().__init__(message)
        self.waited_s = waited_s


class PatientStream:
    """A stream whose reads have two timeouts: one for the next bytes and one for the whole reply."""

    def __init__(self, stream: ByteStream, idle_s: float, limit_s: float) -> None:
        self._stream = stream
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._until = trio.current_time() + limit_s
        self._scope = trio.CancelScope(deadline=self._until)  # pyright: ignore[reportCallIssue]

    async def run(self, function: Callable[["PatientStream"], Awaitable[None]]) -> None:
        with self._scope:
            await function(self)
        if self._scope.cancelled_caught:
            if trio.current_time() >= self._until:
                raise SourceStalled(f"nothing complete within {self._limit_s:.1f} s", self._limit_s)
            raise SourceStalled(f"sends nothing for {self._idle_s:.1f} s", self._idle_s)

    async def read_some(self, max_bytes: int) -> bytes:
        idle_until = trio.current_time() + self._idle_s
        if idle_until >= self._until:
            return await self._stream.read_some(max_bytes)
        self._scope.deadline = idle_until
        data = await self._stream.read_some(max_bytes)
        self._scope.deadline = self._until
        return data


class FetchJob:
    """Fetches several blobs from several sources; `run` returns when all are in their sinks.

    `is_wanted` says that another fetch waits for this one's place; then a fetch whose sources have nothing ends.
    Otherwise peers that announce payloads and withhold them would hold all the places (B7).
    """

    def __init__(
        self, targets: Sequence[Target], sources: Sequence[bytes], peers: PeerTable, book: SourceBook, *,
        parallel: bool, progress: Callable[[int], None] | None = None, is_wanted: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._is_wanted = is_wanted
        self._targets = list(targets)
        self._sources = list(sources)
        self._peers = peers
        self._book = book
        self._limits = book.limits
        self._parallel = parallel
        self._progress = progress
        self._scheduler = RangeScheduler([t.chunks for t in targets])
        self._planner = RequestPlanner(self._targets, self._scheduler, book)
        self._changed = Signal()
        self._present = 0
        self._unfinished = len(self._targets)
        self._writing: set[tuple[int, int]] = set()
        self._fatal: SinkError | None = None
        self._failures: dict[bytes, str] = {}  # the last failure of each source
        self.bytes_by_source: dict[bytes, int] = {}

    async def run(self, deadline: float) -> None:
        with trio.move_on_at(deadline):
            await self._open_targets()
            if not self._is_over():
                await (self._run_parallel() if self._parallel else self._run_in_turn())
        if self._fatal is not None:
            raise self._fatal
        if self._unfinished:
            raise NetworkError(self._describe_failure())

    def _is_over(self) -> bool:
        return not self._unfinished or self._fatal is not None or all(s in self._book.banned for s in self._sources)

    async def _open_targets(self) -> None:
        for number, target in enumerate(self._targets):
            if target.chunks > 1:
                self._scheduler.want_chunk_list(number)
            else:
                await self._open_target(number, b"")

    async def _open_target(self, number: int, hashes: bytes) -> None:
        target = self._targets[number]
        target.hashes = hashes
        for chunk in await target.sink.open(hashes):
            self._count_chunk(number, chunk)
        self._scheduler.want(number)
        await self._finish_if_done(number)

    async def _finish_if_done(self, number: int) -> None:
        if self._scheduler.is_done(number):
            await self._targets[number].sink.finish()
            self._unfinished -= 1

    def _count_chunk(self, number: int, chunk: int) -> None:
        self._scheduler.mark(number, chunk)
        self._present += messages.compute_range_bytes(self._targets[number].size_bytes, chunk, 1)
        if self._progress is not None:
            self._progress(self._present)

    async def _run_parallel(self) -> None:
        async with trio.open_nursery() as nursery:
            for source in self._sources:
                nursery.start_soon(self._serve_source, source)
            while not self._is_over():
                await self._changed.wait()
            nursery.cancel_scope.cancel()

    async def _serve_source(self, source: bytes) -> None:
        delay = FIRST_RETRY_S
        while source not in self._book.banned:
            before = self.bytes_by_source.get(source, 0)
            await self._pull(source)
            delay = FIRST_RETRY_S if self.bytes_by_source.get(source, 0) > before else min(2 * delay, LONGEST_RETRY_S)
            with trio.move_on_after(delay):
                await (self._changed if self._peers.is_connected(source) else self._peers.changed).wait()
        self._changed.notify()

    async def _run_in_turn(self) -> None:
        delay = FIRST_RETRY_S
        while not self._is_over():
            for tried, source in enumerate(self._order_sources()):
                if self._is_in_vain(tried):
                    return
                await self._pull(source)
                if self._is_over():
                    return
            await self._rest(trio.current_time() + delay)
            if self._is_in_vain(LEAST_SOURCES):
                return
            delay = min(2 * delay, LONGEST_RETRY_S)

    def _is_in_vain(self, tried: int) -> bool:
        return tried >= LEAST_SOURCES and not self._present and self._is_wanted()

    async def _rest(self, until: float) -> None:
        """Wait until some source may have something to deliver, or another fetch wants the place."""
        while trio.current_time() < until and not self._is_in_vain(LEAST_SOURCES):
            with trio.move_on_at(min(until, trio.current_time() + LOOK_S)):
                await self._peers.changed.wait()
                return

    def _order_sources(self) -> Iterator[bytes]:
        """Order the sources, connected ones first; usually the preferred source is connected and has the blob."""
        usable = [s for s in self._sources if s not in self._book.banned] if self._book.banned else self._sources
        if not usable:
            return
        if self._peers.is_connected(usable[0]):
            yield usable[0]
            usable = usable[1:]
        yield from sorted(usable, key=lambda s: not self._peers.is_connected(s))

    async def _pull(self, source: bytes) -> None:
        if not self._peers.is_connected(source):
            self._failures[source] = "not connected"
            return
        first = self._planner.take(source)
        if first is None:
            return
        asked = deque([first])
        self._failures[source] = "was being asked"
        try:
            async with self._peers.lease(source, BLOB) as lease:
                await self._exchange(source, lease.stream, asked)
                lease.is_clean = True
        except (_Lie, WireError) as error:
            self._failures[source] = str(error)
            self._book.ban(source, str(error))
        except SourceStalled as error:
            self._failures[source] = str(error)
            self._book.get_statistics(source).add_stall(error.waited_s)
        except SinkError as error:
            self._fatal = error
        except NetworkError as error:
            self._failures[source] = str(error)
        finally:
            for request in asked:
                self._planner.give_back(request)
            self._changed.notify()

    async def _exchange(self, source: bytes, stream: ByteStream, asked: deque[AskedRange]) -> None:
        """Keep requests in flight and read the replies in order; `asked[0]` is not sent yet."""
        await stream.write(self._planner.encode(asked[0]))
        while asked:
            more = self._planner.take_more(source, asked)
            if more:
                asked.extend(more)
                await stream.write(b"".join(map(self._planner.encode, more)))
            await self._receive(source, stream, asked[0])
            self._planner.note_answered(asked.popleft())
            self._changed.notify()
            if not asked and (following := self._planner.take(source)) is not None:
                asked.append(following)
                await stream.write(self._planner.encode(following))

    async def _receive(self, source: bytes, stream: ByteStream, request: AskedRange) -> None:
        statistics = self._book.get_statistics(source)
        at_least_s = self._limits.file_progress_s if self._parallel else self._limits.min_progress_s
        idle_s = statistics.compute_limit_s(0, at_least_s)
        limit_s = statistics.compute_limit_s(request.size_bytes, at_least_s)

        async def read(patient: PatientStream) -> None:
            started = trio.current_time()
            status = await messages.read_reply_head(patient, request.size_bytes)
            began = trio.current_time()
            statistics.add_wait(began - started)
            if status != messages.Status.OK:
                self._failures[source] = f"does not have it ({status.name.lower()})"
                self._planner.note_lack(source, request.item)
                return
            await self._receive_body(source, patient, request.item)
            statistics.add_transfer(request.size_bytes, trio.current_time() - began)
            self._scheduler.finish(request.item)

        await PatientStream(stream, idle_s, limit_s).run(read)

    async def _receive_body(self, source: bytes, stream: Readable, item: Range) -> None:
        target = self._targets[item.target]
        if not item.count:
            body = await read_exactly(stream, messages.compute_chunk_list_bytes(target.size_bytes))
            self._count_bytes(source, len(body))
            hashes = messages.decode_chunk_list(body, target.size_bytes)
            if compute_blob_id(target.size_bytes, hashes) != target.blob_id:
                raise _Lie("a chunk list that does not belong to its id")
            if not target.hashes:  # a second list may arrive after another source took the request over
                await self._open_target(item.target, hashes)
            return
        for chunk in range(item.first, item.first + item.count):
            data = await read_exactly(stream, messages.compute_range_bytes(target.size_bytes, chunk, 1))
            self._count_bytes(source, len(data))
            if not target.is_right(chunk, data):
                raise _Lie(f"chunk {chunk} of {target.blob_id.hex()[:16]} is wrong")
            await self._store(item.target, chunk, data)

    async def _store(self, number: int, chunk: int, data: bytes) -> None:
        if self._scheduler.is_marked(number, chunk) or (number, chunk) in self._writing:
            return
        self._writing.add((number, chunk))
        try:
            await self._targets[number].sink.write(chunk, data)
        finally:
            self._writing.discard((number, chunk))
        self._count_chunk(number, chunk)
        await self._finish_if_done(number)

    def _count_bytes(self, source: bytes, size_bytes: int) -> None:
        self._book.bytes_received += size_bytes
        self.bytes_by_source[source] = self.bytes_by_source.get(source, 0) + size_bytes

    def _describe_failure(self) -> str:
        missing = self._scheduler.get_missing()
        names = ", ".join(self._targets[m].blob_id.hex()[:16] for m in missing[:4])
        why = "; ".join(
            f"{s.hex()[:16]} {self._book.banned.get(s) or self._failures.get(s, 'was not asked')}"
            for s in self._sources[:8]
        )
        return f"blob {names}: {len(missing)} of {len(self._targets)} not here in time; sources: {why or 'none'}"
