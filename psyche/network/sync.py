"""`/psyche/sync/1` as bytes: the requests and replies of `wire.ports`, with size limits on both sides."""

from typing import Final

import msgspec

from psyche.core.state.limits import MAX_CLIENTS
from psyche.errors import NetworkError, WireError
from psyche.network.addresses.messages import ITEM_BYTES, MAX_RECORDS
from psyche.network.limits import SYNC_ITEMS, SYNC_REPLY_BYTES
from psyche.wire.msgpack import UNREADABLE
from psyche.wire.ports import SyncReply, SyncRequest

ADDRESSES: Final = "addresses"
KINDS: Final = ("announcements", "table", "manifest", ADDRESSES)
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
    if len(reply.items) > SYNC_ITEMS or sum(map(len, reply.items)) > SYNC_REPLY_BYTES:
        raise WireError(f"sync reply: at most {SYNC_ITEMS} items and {SYNC_REPLY_BYTES} bytes")
    return msgspec.msgpack.encode(_Reply(reply.found, list(reply.items)))


def decode_sync_reply(raw: bytes) -> SyncReply:
    try:
        wire = _reply.decode(raw)
    except UNREADABLE as error:
        raise WireError("sync reply: not the expected fields") from error
    if len(wire.items) > SYNC_ITEMS or sum(map(len, wire.items)) > SYNC_REPLY_BYTES:
        raise WireError(f"sync reply: at most {SYNC_ITEMS} items and {SYNC_REPLY_BYTES} bytes")
    return SyncReply(wire.found, tuple(wire.items))
