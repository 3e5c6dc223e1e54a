"""Gossip: admission, deduplication, and announcements over open streams.

With up to 32 allowed peers, a message is sent directly to each of them. The gossip mesh carries it too if an
allowed peer stays unreachable, or if there are more peers. The mesh costs several times as much: if every
start used it, many nodes on a busy machine would never get connected. A message counts once per origin,
no matter by which path it came.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import trio

from psyche.core.state.limits import MAX_MESSAGE_BYTES
from psyche.errors import NetworkError
from psyche.network.limits import NetworkLimits
from psyche.network.peers import PeerTable
from psyche.network.streams import GOSSIP, ByteStream, Signal, read_frame, run_until, write_frame
from psyche.wire.crypto import blake3_hash
from psyche.wire.line.pace import TokenBucket
from psyche.wire.ports import NetworkStatistics

_log: Final = logging.getLogger("psyche.network")
FLOOD_PAUSE_S: Final = 0.05
RETRY_S: Final = 1.0
MAX_BUCKETS: Final = 1_024
NAMES_KEPT: Final = 1_024  # verdicts cached: each message is checked twice and may arrive by several paths


class Buckets:
    """One token bucket per key; the least recently used key is evicted."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._buckets: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def take(self, key: bytes, now: float) -> bool:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._rate, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket.take(now)


class SeenSet:
    """The last `max_items` hashes; adding another evicts the oldest."""

    def __init__(self, max_items: int) -> None:
        self._max = max_items
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, item: bytes) -> bool:
        return item in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, item: bytes) -> bool:
        if item in self._seen:
            return False
        if len(self._seen) >= self._max:
            self._seen.popitem(last=False)
        self._seen[item] = None
        return True


class Inbox:
    """Decides which gossip is delivered and queues it for the reader; a full queue drops the oldest."""

    def __init__(self, own_key: bytes, limits: NetworkLimits, statistics: NetworkStatistics) -> None:
        self.allowed: frozenset[bytes] = frozenset()
        self._own_key = own_key
        self._statistics = statistics
        self._buckets = Buckets(limits.gossip_per_s, limits.gossip_burst)
        self._seen = SeenSet(limits.seen_messages)
        self._send, self._receive = trio.open_memory_channel[tuple[bytes, bytes]](limits.inbox_messages)

    @property
    def unread(self) -> int:
        return self._receive.statistics().current_buffer_used

    def is_acceptable(self, origin: bytes, message: bytes) -> bool:
        """Check size, allow-list and rate. Never raises, so that the mesh may call it on unauthenticated bytes."""
        if not 0 < len(message) <= MAX_MESSAGE_BYTES or origin not in self.allowed:
            self._statistics.gossip_refused += 1
            return False
        if _name(origin, message) in self._seen:
            return True
        if not self._buckets.take(origin, trio.current_time()):
            self._statistics.gossip_refused += 1
            return False
        return True

    def take(self, origin: bytes, message: bytes) -> bool:
        is_acceptable = self.is_acceptable(origin, message)
        if is_acceptable:
            self.deliver(origin, message)
        return is_acceptable

    def deliver(self, origin: bytes, message: bytes) -> None:
        """Queue an accepted message unless it was seen before; a full queue drops its oldest message."""
        if origin == self._own_key or not self._seen.add(_name(origin, message)):
            return
        self._statistics.gossip_received += 1
        self._statistics.bytes_received += len(message)
        while True:
            try:
                self._send.send_nowait((origin, message))
            except trio.WouldBlock:
                self._receive.receive_nowait()
                continue
            return

    def messages(self) -> trio.MemoryReceiveChannel[tuple[bytes, bytes]]:
        return self._receive.clone()

    def close(self) -> None:
        self._send.close()


@lru_cache(maxsize=NAMES_KEPT)
def _name(origin: bytes, message: bytes) -> bytes:
    return blake3_hash(origin, message)


class Outbox:
    """A queue of announcements to one peer over one open stream; when full it drops the oldest."""

    def __init__(self, limits: NetworkLimits, statistics: NetworkStatistics) -> None:
        self._queue: deque[bytes] = deque(maxlen=limits.outbox_messages)
        self._signal = Signal()
        self._statistics = statistics

    @property
    def unsent(self) -> int:
        return len(self._queue)

    def put(self, message: bytes) -> None:
        self._queue.append(message)
        self._signal.notify()

    async def run(self, stream: ByteStream) -> None:
        """Send queued messages until the stream breaks; the one at the front is then sent again on the next stream."""
        while True:
            while self._queue:
                message = self._queue[0]
                await write_frame(stream, message)
                self._statistics.bytes_sent += len(message)
                if self._queue and self._queue[0] is message:
                    self._queue.popleft()
            await self._signal.wait()


class Outboxes:
    """One outbox for each connected peer that an announcement was sent to."""

    def __init__(
        self, peers: PeerTable, limits: NetworkLimits, statistics: NetworkStatistics, start_soon: Callable[..., None]
    ) -> None:
        self._peers = peers
        self._limits = limits
        self._statistics = statistics
        self._start_soon = start_soon
        self._outboxes: dict[bytes, Outbox] = {}

    def __len__(self) -> int:
        return len(self._outboxes)

    def count_unsent(self) -> int:
        return max((one.unsent for one in self._outboxes.values()), default=0)

    def put(self, key: bytes, message: bytes) -> None:
        outbox = self._outboxes.get(key)
        if outbox is None:
            outbox = self._outboxes[key] = Outbox(self._limits, self._statistics)
            self._start_soon(self._run, key, outbox)
        outbox.put(message)

    async def _run(self, key: bytes, outbox: Outbox) -> None:
        try:
            while (peer := self._peers.get(key)) is not None and peer.admitted.is_set():
                try:
                    async with self._peers.lease(key, GOSSIP) as lease:
                        await run_until(peer.gone, outbox.run, lease.stream)
                except NetworkError as error:
                    _log.debug("announcements to %s: %s", key.hex()[:16], error)
                with trio.move_on_after(RETRY_S):
                    await peer.gone.wait()
        finally:
            del self._outboxes[key]


async def receive_announcements(stream: ByteStream, origin: bytes, inbox: Inbox) -> None:
    while True:
        message = await read_frame(stream, MAX_MESSAGE_BYTES, "gossip")
        if not inbox.take(origin, message):
            await trio.sleep(FLOOD_PAUSE_S)  # B16: a flood fills the peer's own window, not our CPU


def check_message(message: bytes) -> None:
    if not 0 < len(message) <= MAX_MESSAGE_BYTES:
        raise NetworkError(f"gossip: a message of {len(message)} bytes, must be 1 to {MAX_MESSAGE_BYTES}")
