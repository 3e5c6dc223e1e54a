"""Serving blobs: at most two ranges at once per peer and eight in all, in the order of the requests."""

import math
from typing import Final

import trio

from psyche.network.blobs import messages
from psyche.network.blobs.store import BlobStore
from psyche.network.limits import NetworkLimits
from psyche.network.streams import ByteStream, read_exactly
from psyche.wire.line.turns import AtOnce
from psyche.wire.ports import NetworkStatistics

READ_CHUNKS: Final = 4  # read from a file at a time: the memory that each range being served takes
MAX_PEER_LIMITERS: Final = 1_024


class BlobServer:
    def __init__(self, store: BlobStore, limits: NetworkLimits, statistics: NetworkStatistics) -> None:
        self._statistics = statistics
        self._store = store
        self._limits = limits
        self._total = trio.CapacityLimiter(limits.ranges_total)
        self._per_peer: dict[bytes, trio.CapacityLimiter] = {}

    async def serve(self, key: bytes, stream: ByteStream) -> None:
        with trio.CancelScope() as scope:  # pyright: ignore[reportCallIssue]
            while True:
                scope.deadline = trio.current_time() + self._limits.idle_stream_s
                raw = await read_exactly(stream, messages.REQUEST_BYTES)
                scope.deadline = math.inf
                async with AtOnce(self._get_limiter(key)), AtOnce(self._total):
                    await self._answer(stream, messages.decode_blob_request(raw))

    def _get_limiter(self, key: bytes) -> trio.CapacityLimiter:
        found = self._per_peer.get(key)
        if found is None:
            if len(self._per_peer) >= MAX_PEER_LIMITERS:
                idle = next((k for k, limiter in self._per_peer.items() if not limiter.borrowed_tokens), key)
                self._per_peer.pop(idle, None)
            found = self._per_peer[key] = trio.CapacityLimiter(self._limits.ranges_per_peer)
        return found

    async def _answer(self, stream: ByteStream, request: messages.BlobRequest) -> None:
        found = self._store.get_chunk_list(request.blob_id)
        if found is None:
            await stream.write(messages.encode_reply_head(messages.Status.UNKNOWN))
            return
        size, hashes = found
        if not request.count:
            body = messages.encode_chunk_list(size, hashes)
            await self._send(stream, messages.encode_reply_head(messages.Status.OK, len(body)) + body)
        elif request.first + request.count > messages.compute_chunk_count(size):
            await stream.write(messages.encode_reply_head(messages.Status.REFUSED))
        else:
            await self._send_range(stream, request, size)

    async def _send_range(self, stream: ByteStream, request: messages.BlobRequest, size: int) -> None:
        """Send head and first part in one write; the stream ends if the file disappears meanwhile."""
        end = request.first + request.count
        wanted = messages.compute_range_bytes(size, request.first, request.count)
        head = messages.encode_reply_head(messages.Status.OK, wanted)
        for first in range(request.first, end, READ_CHUNKS):
            part = await self._store.read(request.blob_id, first, min(READ_CHUNKS, end - first))
            if part is None and head:
                await stream.write(messages.encode_reply_head(messages.Status.UNKNOWN))
                return
            if part is None:
                await stream.reset()
                return
            await self._send(stream, head + part)
            head = b""

    async def _send(self, stream: ByteStream, data: bytes) -> None:
        await stream.write(data)
        self._statistics.bytes_sent += len(data)
