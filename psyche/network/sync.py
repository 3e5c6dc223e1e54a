"""`/psyche/sync/1`: requests to peers and answers to theirs, with size limits on both sides."""

import logging
from collections.abc import Sequence
from typing import Final

import msgspec
import trio

from psyche.core.state.limits import MAX_CLIENTS
from psyche.errors import NetworkError, WireError
from psyche.network.addresses.table import ITEM_BYTES, MAX_RECORDS, encode_address_record
from psyche.network.limits import SYNC_ITEMS, SYNC_REPLY_BYTES, SYNC_REQUEST_BYTES, NetworkLimits
from psyche.network.peers import PeerTable
from psyche.network.streams import SYNC, ByteStream, Lease, StreamError, read_frame, write_frame
from psyche.wire.line.turns import AtOnce
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.ports import NetworkStatistics, SyncHandler, SyncReply, SyncRequest

_log: Final = logging.getLogger("psyche.network")

ADDRESSES: Final = "addresses"
KINDS: Final = ("announcements", "table", "manifest", "upload", "data", "opening", ADDRESSES)
_BITMAP_BYTES: Final = MAX_CLIENTS // 8
REPLY_FRAME_BYTES: Final = SYNC_REPLY_BYTES + 8 * SYNC_ITEMS + 64  # msgpack's lengths
ADDRESSES_FRAME_BYTES: Final = MAX_RECORDS * (ITEM_BYTES + 8) + 64


class _Request(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    epoch: int
    height: int
    have: bytes
    key: bytes


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    found: bool
    items: list[bytes]


_request = msgspec.msgpack.Decoder(_Request)
_reply = msgspec.msgpack.Decoder(_Reply)


def encode_sync_request(request: SyncRequest) -> bytes:
    if not 0 <= request.have < 1 << MAX_CLIENTS:
        raise NetworkError(f"sync request: have is not a bitmap of {MAX_CLIENTS} members")
    have = request.have.to_bytes(_BITMAP_BYTES, "little")
    wire = _Request(request.kind, request.epoch, request.height, have, request.key)
    _check_request(wire)
    return msgspec.msgpack.encode(wire)


def decode_sync_request(raw: bytes) -> SyncRequest:
    try:
        wire = _request.decode(raw)
    except UNREADABLE as error:
        raise WireError("sync request: not the expected fields") from error
    _check_request(wire)
    return SyncRequest(wire.kind, wire.epoch, wire.height, int.from_bytes(wire.have, "little"), wire.key)


def _check_request(wire: _Request) -> None:
    if wire.kind not in KINDS:
        raise WireError(f"sync request: unknown kind {wire.kind[:32]!r}")
    if not (0 <= wire.epoch < 1 << 16 and 0 <= wire.height < 1 << 32):
        raise WireError("sync request: epoch or height is out of range")
    if len(wire.have) != _BITMAP_BYTES or len(wire.key) not in {0, 32}:
        raise WireError("sync request: have or key has a wrong length")


def get_reply_limit(kind: str) -> int:
    return ADDRESSES_FRAME_BYTES if kind == ADDRESSES else REPLY_FRAME_BYTES


def encode_sync_reply(reply: SyncReply) -> bytes:
    _check_items(reply.items)
    return msgspec.msgpack.encode(_Reply(reply.found, list(reply.items)))


def decode_sync_reply(raw: bytes) -> SyncReply:
    try:
        wire = _reply.decode(raw)
    except UNREADABLE as error:
        raise WireError("sync reply: not the expected fields") from error
    _check_items(wire.items)
    return SyncReply(wire.found, tuple(wire.items))


def _check_items(items: Sequence[bytes]) -> None:
    if len(items) > SYNC_ITEMS or sum(map(len, items)) > SYNC_REPLY_BYTES:
        raise WireError(f"sync reply: at most {SYNC_ITEMS} items and {SYNC_REPLY_BYTES} bytes")


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
