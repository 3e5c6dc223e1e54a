"""`/psyche/sync/1`: requests to peers, and answers to their requests."""

import logging
from typing import Final

import trio

from psyche.errors import NetworkError
from psyche.network.addresses.messages import encode_address_record
from psyche.network.limits import SYNC_REQUEST_BYTES, NetworkLimits
from psyche.network.peers import PeerTable
from psyche.network.streams import SYNC, ByteStream, Lease, StreamError, read_frame, write_frame
from psyche.network.sync import (
    ADDRESSES,
    decode_sync_reply,
    decode_sync_request,
    encode_sync_reply,
    encode_sync_request,
    get_reply_limit,
)
from psyche.wire.line.turns import AtOnce
from psyche.wire.ports import NetworkStatistics, SyncHandler, SyncReply, SyncRequest

_log: Final = logging.getLogger("psyche.network")


class Questions:
    """Sends requests to peers and answers theirs: "addresses" by itself, the rest through `handler`."""

    def __init__(self, peers: PeerTable, limits: NetworkLimits, statistics: NetworkStatistics) -> None:
        self.handler: SyncHandler | None = None
        self._peers = peers
        self._limits = limits
        self._statistics = statistics
        self._handling = trio.CapacityLimiter(limits.sync_handlers)

    async def ask(self, peer: bytes, request: SyncRequest, timeout_s: float) -> SyncReply:
        raw, limit = encode_sync_request(request), get_reply_limit(request.kind)
        try:
            with trio.fail_after(timeout_s):
                return decode_sync_reply(await self._send(peer, raw, limit))
        except trio.TooSlowError as error:
            raise NetworkError(f"peer {peer.hex()[:16]}: no answer to {request.kind} in {timeout_s:g} s") from error

    async def _send(self, peer: bytes, raw: bytes, limit: int) -> bytes:
        while True:
            async with self._peers.lease(peer, SYNC) as lease:
                try:
                    return await self._ask_on(lease, raw, limit)
                except StreamError:
                    if not lease.is_reused:
                        raise  # the peer may have closed an idle stream: retry once on a new one

    async def _ask_on(self, lease: Lease, raw: bytes, limit: int) -> bytes:
        await write_frame(lease.stream, raw)
        reply = await read_frame(lease.stream, limit, "sync reply")
        self._statistics.bytes_sent += len(raw)
        self._statistics.bytes_received += len(reply)
        lease.is_clean = True
        return reply

    async def serve(self, key: bytes, stream: ByteStream) -> None:
        while True:
            with trio.move_on_after(self._limits.idle_stream_s) as idle:
                raw = await read_frame(stream, SYNC_REQUEST_BYTES, "sync request")
            if idle.cancelled_caught:
                return
            reply = await self._answer(key, decode_sync_request(raw))
            await write_frame(stream, reply)
            self._statistics.bytes_received += len(raw)
            self._statistics.bytes_sent += len(reply)

    async def _answer(self, key: bytes, request: SyncRequest) -> bytes:
        """Call the handler; if it fails or takes too long, reply "not found"."""
        if request.kind == ADDRESSES:
            records = self._peers.get_records(request.key)
            return encode_sync_reply(SyncReply(True, tuple(map(encode_address_record, records))))
        reply = SyncReply(found=False)
        if self.handler is not None:
            try:
                async with AtOnce(self._handling):
                    with trio.move_on_after(self._limits.serve_sync_s):
                        reply = await self.handler(key, request)
                return encode_sync_reply(reply)
            except Exception:  # noqa: BLE001 - nor one of the handler
                _log.exception("the answer to %s failed", request.kind)
        return encode_sync_reply(SyncReply(found=False))
