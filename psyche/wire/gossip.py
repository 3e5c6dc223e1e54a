"""Signed gossip as bytes (`docs/protocol-reference.md` R2): signed bytes | signature 64 | for a Result the header."""

import struct
from functools import lru_cache
from typing import Final

from psyche.core.header import RESULT_TAG, signed_prefix
from psyche.core.limits import HEADER_BYTES, MAX_CLIENTS
from psyche.core.messages import Finished, Gossip, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.errors import WireError
from psyche.wire.crypto import Identity, compute_commitment, verify

SIGNATURE_BYTES: Final = 64
MESSAGES_KEPT: Final = 1_024  # about 1 MB
_PREFIX: Final = struct.Struct("<32sHIH")
_TAGS: Final[dict[bytes, type[GossipBody]]] = {
    RESULT_TAG: Result,
    b"psyche/ready/1": Ready,
    b"psyche/finished/1": Finished,
    b"psyche/leave/1": Leave,
}
_TAG_OF: Final = {kind: tag for tag, kind in _TAGS.items()}
_READY_BYTES: Final = 33
_BODY_BYTES: Final[dict[type[GossipBody], int]] = {Result: 32, Ready: _READY_BYTES, Finished: 96, Leave: 0}


def _encode_body(body: GossipBody) -> bytes:
    match body:
        case Result():
            return body.commitment
        case Ready():
            return body.digest + bytes([body.flags])
        case Finished():
            ready = b"" if body.ready is None else _encode_body(body.ready)
            return body.held.to_bytes(32, "little") + body.results_root + body.seen.to_bytes(32, "little") + ready
        case Leave():
            return b""


def _decode_body(kind: type[GossipBody], raw: bytes, header: bytes) -> GossipBody:
    if kind is Result:
        return Result(raw, header)
    if kind is Ready:
        return _decode_ready(raw)
    if kind is Finished:
        ready = _decode_ready(raw[96:]) if len(raw) > 96 else None
        return Finished(int.from_bytes(raw[:32], "little"), raw[32:64], int.from_bytes(raw[64:96], "little"), ready)
    return Leave()


def _decode_ready(raw: bytes) -> Ready:
    if raw[32] > ReadyFlag.BEHIND | ReadyFlag.DIVERGED:
        raise WireError(f"gossip: ready flags {raw[32]} are unknown")
    return Ready(raw[:32], ReadyFlag(raw[32]))


def signed_bytes(run_uid: bytes, epoch: int, height: int, member: int, body: GossipBody) -> bytes:
    """What the member's p2p key signs."""
    return signed_prefix(_TAG_OF[type(body)], run_uid, epoch, height, member) + _encode_body(body)


def sign_gossip(identity: Identity, run_uid: bytes, epoch: int, height: int, member: int, body: GossipBody) -> Gossip:
    """A message of this member, signed."""
    signature = identity.sign(signed_bytes(run_uid, epoch, height, member, body))
    return Gossip(run_uid, epoch, height, member, body, signature)


def encode_gossip(message: Gossip) -> bytes:
    """The bytes on the wire."""
    raw = signed_bytes(message.run_uid, message.epoch, message.height, message.member, message.body)
    header = message.body.header if isinstance(message.body, Result) else b""
    return raw + message.signature + header


@lru_cache(maxsize=MESSAGES_KEPT)
def decode_gossip(raw: bytes) -> Gossip:
    """Read a message; the signature is not checked here (`is_signed_by`).

    The last ones are kept: the same message comes by gossip, by sync and in witnesses' tables.

    Raises:
        WireError: unknown tag, wrong length, a member out of range, or a header that does not
            hash to the commitment (R1).
    """
    tag = next((tag for tag in _TAGS if raw.startswith(tag)), None)
    if tag is None:
        raise WireError("gossip: unknown tag")
    kind = _TAGS[tag]
    signed = len(tag) + _PREFIX.size + _BODY_BYTES[kind]
    if kind is Finished and len(raw) == signed + SIGNATURE_BYTES + _READY_BYTES:
        signed += _READY_BYTES  # with Ready inside
    expected = signed + SIGNATURE_BYTES + (HEADER_BYTES if kind is Result else 0)
    if len(raw) != expected:
        raise WireError(f"gossip: {kind.__name__} of {len(raw)} bytes, must be {expected}")
    run_uid, epoch, height, member = _PREFIX.unpack_from(raw, len(tag))
    if member >= MAX_CLIENTS:
        raise WireError(f"gossip: member {member} is out of range")
    header = raw[signed + SIGNATURE_BYTES :]
    body = _decode_body(kind, raw[len(tag) + _PREFIX.size : signed], header)
    if isinstance(body, Result) and compute_commitment(header) != body.commitment:
        raise WireError("gossip: the header does not hash to the commitment (R1)")
    return Gossip(run_uid, epoch, height, member, body, raw[signed : signed + SIGNATURE_BYTES])


def is_signed_by(message: Gossip, p2p: bytes) -> bool:
    """Whether the member whose key is `p2p` signed the message."""
    raw = signed_bytes(message.run_uid, message.epoch, message.height, message.member, message.body)
    return verify(p2p, raw, message.signature)
