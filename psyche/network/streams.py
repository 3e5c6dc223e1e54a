"""Byte streams between two nodes over any transport, and the frames on them.

Every read has a size limit, so that a length that a peer claims is checked before anything is allocated
for it.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Final, Protocol, Self, TypeVar

import trio

from psyche.errors import NetworkError
from psyche.wire.line.length import LENGTH_BYTES, pack_length, read_length
from psyche.wire.line.turns import take
from psyche.wire.nursery import open_plain_nursery

HELLO: Final = "/psyche/hello/1"
GOSSIP: Final = "/psyche/gossip/1"
SYNC: Final = "/psyche/sync/1"
BLOB: Final = "/psyche/blob/1"
PROTOCOLS: Final = (HELLO, GOSSIP, SYNC, BLOB)

READ_BYTES: Final = 1 << 20
T = TypeVar("T")


class StreamError(NetworkError):
    """The stream ended, was reset, or its connection is gone."""


class Readable(Protocol):
    async def read_some(self, max_bytes: int) -> bytes:
        """Read between 1 and `max_bytes` bytes.

        Raises:
            StreamError: the stream is at its end or broken.
        """
        ...


class ByteStream(Readable, Protocol):
    """One ordered, reliable, bidirectional stream; one reader and one writer at a time."""

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None:
        """Close for writing; what was written still arrives. Never raises."""
        ...

    async def reset(self) -> None:
        """Reset both directions at once, dropping data in flight; never raises and waits only briefly."""
        ...


async def read_exactly(stream: Readable, size_bytes: int) -> bytes:
    parts: list[bytes] = []
    missing = size_bytes
    while missing > 0:
        part = await stream.read_some(min(missing, READ_BYTES))
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_frame(stream: Readable, max_bytes: int, what: str) -> bytes:
    """Read a frame: u32 length, then that many bytes."""
    head = await read_exactly(stream, LENGTH_BYTES)
    return await read_exactly(stream, read_length(head, max_bytes, what))


async def write_frame(stream: ByteStream, body: bytes) -> None:
    await stream.write(pack_length(len(body)) + body)


class Signal:
    """Wakes all tasks that wait when something changes; a notification without waiters is lost."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None  # None while no task waits

    def notify(self) -> None:
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()


def take_rest(channel: trio.MemoryReceiveChannel[T]) -> Iterator[T]:
    """Take what is in a channel now."""
    with suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            yield channel.receive_nowait()


async def run_until(event: trio.Event, function: Callable[..., Awaitable[object]], *args: object) -> None:
    """Run `function` until it ends or `event` is set; its errors are raised unchanged."""

    async def run() -> None:
        await function(*args)
        nursery.cancel_scope.cancel()

    async with open_plain_nursery() as nursery:
        nursery.start_soon(run)
        await event.wait()
        nursery.cancel_scope.cancel()


class StreamPool:
    """A pool of streams of one protocol to one peer, because opening a stream costs a negotiation."""

    def __init__(self, open_stream: Callable[[], Awaitable[ByteStream]], max_streams: int, idle_s: float) -> None:
        self._open = open_stream
        self._streams = trio.Semaphore(max_streams)
        self._idle: list[tuple[float, ByteStream]] = []
        self._idle_s = idle_s / 2  # the other side drops them after `idle_s`

    async def take(self) -> tuple[ByteStream, bool]:
        await take(self._streams)
        try:
            while self._idle:
                since, stream = self._idle.pop()
                if trio.current_time() - since < self._idle_s:
                    return stream, True
                await stream.reset()
            return await self._open(), False
        except BaseException:
            self._streams.release()
            raise

    async def give_back(self, stream: ByteStream, *, is_clean: bool) -> None:
        try:
            if is_clean:
                self._idle.append((trio.current_time(), stream))
            else:
                with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
                    await stream.reset()
        finally:
            self._streams.release()


class Lease:
    """A stream of a pool for one exchange: `async with` gives it back, for others if its user has marked it clean.

    Entering raises NetworkError if the peer is gone or does not speak the protocol. A class and not a generator with
    `asynccontextmanager`, because every message and payload passes through here.
    """

    __slots__ = ("_pool", "is_clean", "is_reused", "stream")

    def __init__(self, pool: StreamPool) -> None:
        self._pool = pool
        self.is_clean = False  # set by the user after both request and reply are complete
        self.is_reused = False
        self.stream: ByteStream

    async def __aenter__(self) -> Self:
        self.stream, self.is_reused = await self._pool.take()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._pool.give_back(self.stream, is_clean=self.is_clean)
