"""Decides what each source of blobs is asked for, and how much of it at a time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from psyche.network.blobs import messages
from psyche.network.blobs.ranges import Range, RangeScheduler
from psyche.network.blobs.sinks import Sink
from psyche.network.blobs.sources import SourceBook
from psyche.network.limits import ASK_CHUNKS, WINDOW_BYTES
from psyche.wire.crypto import BLOB_CHUNK_BYTES, blake3_hash, compute_blob_id

FIRST_RETRY_S: Final = 0.25
LONGEST_RETRY_S: Final = 4.0
WINDOW_TARGET_S: Final = 4.0  # the requests in flight to a source take about this time at its rate


@dataclass(slots=True)
class Target:
    """One blob to fetch; a blob of one chunk has no chunk hashes until it has arrived."""

    blob_id: bytes
    size_bytes: int
    sink: Sink
    hashes: bytes = b""

    @property
    def chunks(self) -> int:
        return messages.compute_chunk_count(self.size_bytes)

    def is_right(self, chunk: int, data: bytes) -> bool:
        found = blake3_hash(data)
        if self.chunks == 1:
            return compute_blob_id(self.size_bytes, found) == self.blob_id
        return found == self.hashes[chunk * messages.HASH_BYTES : (chunk + 1) * messages.HASH_BYTES]


@dataclass(slots=True)
class AskedRange:
    item: Range
    size_bytes: int


class RequestPlanner:
    """Gives each source of a fetch its next requests, as many as its rate and the node's limits allow."""

    def __init__(self, targets: Sequence[Target], scheduler: RangeScheduler, book: SourceBook) -> None:
        self._targets = targets
        self._scheduler = scheduler
        self._book = book
        self._limits = book.limits
        self._lacks: dict[tuple[bytes, int], tuple[float, float]] = {}  # (source, target) -> (until, delay)

    def take(self, source: bytes, max_chunks: int = ASK_CHUNKS, *, take_over: bool = True) -> AskedRange | None:
        """Take a range that the source may have, or one that another source is slow to deliver; None: there is none."""
        now = trio.current_time()
        statistics = self._book.get_statistics(source)
        wish = statistics.compute_chunks(BLOB_CHUNK_BYTES, self._limits.range_target_s, ASK_CHUNKS)
        room = (self._limits.asked_bytes - self._book.asked_bytes) // BLOB_CHUNK_BYTES

        def is_usable(target: int) -> bool:
            return self._lacks.get((source, target), (0.0, 0.0))[0] <= now

        item = self._scheduler.take(source, now, max(1, min(wish, max_chunks, room)), is_usable)
        if item is None and take_over:
            item = self._scheduler.take_over(source, now, now - self._limits.take_over_s, is_usable)
        if item is None:
            return None
        wanted = messages.compute_reply_bytes(self._targets[item.target].size_bytes, item.first, item.count)
        self._book.asked_bytes += wanted
        return AskedRange(item, wanted)

    def take_more(self, source: bytes, asked: deque[AskedRange]) -> list[AskedRange]:
        more: list[AskedRange] = []
        room = self._book.get_statistics(source).compute_window(WINDOW_TARGET_S, WINDOW_BYTES, 2 * BLOB_CHUNK_BYTES)
        room -= sum(a.size_bytes for a in asked)
        room = min(room, self._limits.asked_bytes - self._book.asked_bytes)
        large = sum(a.size_bytes > BLOB_CHUNK_BYTES for a in asked)
        while len(asked) + len(more) < self._limits.blobs_in_flight and room >= BLOB_CHUNK_BYTES and large < 2:
            request = self.take(source, room // BLOB_CHUNK_BYTES, take_over=False)
            if request is None:
                break
            more.append(request)
            room -= request.size_bytes
            large += request.size_bytes > BLOB_CHUNK_BYTES
        return more

    def give_back(self, request: AskedRange) -> None:
        self._book.asked_bytes -= request.size_bytes
        self._scheduler.drop(request.item)

    def note_answered(self, request: AskedRange) -> None:
        self._book.asked_bytes -= request.size_bytes

    def note_lack(self, source: bytes, item: Range) -> None:
        """Note that the source lacks the blob: ask it again later, and the others now."""
        now = trio.current_time()
        delay = min(2 * self._lacks.get((source, item.target), (0.0, FIRST_RETRY_S / 2))[1], LONGEST_RETRY_S)
        self._lacks[source, item.target] = (now + delay, delay)
        self._scheduler.drop(item)

    def encode(self, request: AskedRange) -> bytes:
        item, blob_id = request.item, self._targets[request.item.target].blob_id
        return messages.encode_blob_request(messages.BlobRequest(blob_id, item.first, item.count))
