"""Signed gossip as bytes (`docs/protocol-reference.md` R2): signed bytes | 64-byte signature | a Result's header."""

from dataclasses import replace
from functools import lru_cache
from typing import Final

from psyche.core.encoding.gossip import BODIES, PREFIX, READY, TAGS
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Result
from psyche.core.state.limits import HEADER_BYTES, SIGNATURE_BYTES
from psyche.errors import WireError
from psyche.wire.crypto import Identity, compute_commitment, verify

MESSAGES_KEPT: Final = 1_024  # about 1 MB
_TAG_OF: Final = {kind: tag for tag, kind in TAGS.items()}


def _encode_body(body: GossipBody) -> bytes:
    ready = body.ready if isinstance(body, Finished) else None
    return BODIES[type(body)].write(body) + (b"" if ready is None else READY.write(ready))


def _decode_body(kind: type[GossipBody], raw: bytes, header: bytes) -> GossipBody:
    fixed = BODIES[kind]
    values = fixed.read_values(raw[: fixed.size])
    if kind is Result:
        return Result(values[0], header)
    if kind is Finished:
        held, root, seen = values
        return Finished(held, root, seen, READY.read(raw[fixed.size :]) if len(raw) > fixed.size else None)
    return kind(*values)


def get_signed_bytes(message: Gossip) -> bytes:
    """Encode the bytes that the member's p2p key signs (R2): tag, run and message, body.

    Raises:
        WireError: a value does not fit its field; the message names the field.
    """
    return _TAG_OF[type(message.body)] + PREFIX.write(message) + _encode_body(message.body)


def sign_gossip(identity: Identity, run_uid: bytes, epoch: int, height: int, member: int, body: GossipBody) -> Gossip:
    unsigned = Gossip(run_uid, epoch, height, member, body, signature=b"")
    return replace(unsigned, signature=identity.sign(get_signed_bytes(unsigned)))


def encode_gossip(message: Gossip) -> bytes:
    header = message.body.header if isinstance(message.body, Result) else b""
    return get_signed_bytes(message) + message.signature + header


@lru_cache(maxsize=MESSAGES_KEPT)
def decode_gossip(raw: bytes) -> Gossip:
    """Decode a message; `is_signed_by` checks the signature.

    Recent messages are cached, because the same message arrives by gossip, by sync and in witnesses' tables.

    Raises:
        WireError: unknown tag, wrong length, a member out of range, unknown flags, or a header that
            does not hash to the commitment (R1).
    """
    tag = next((tag for tag in TAGS if raw.startswith(tag)), None)
    if tag is None:
        raise WireError("gossip: unknown tag")
    kind, start = TAGS[tag], len(tag) + PREFIX.size
    signed = start + BODIES[kind].size
    if kind is Finished and len(raw) == signed + SIGNATURE_BYTES + READY.size:
        signed += READY.size  # a Ready is embedded in it
    expected = signed + SIGNATURE_BYTES + (HEADER_BYTES if kind is Result else 0)
    if len(raw) != expected:
        raise WireError(f"gossip: {kind.__name__} of {len(raw)} bytes, must be {expected}")
    header = raw[signed + SIGNATURE_BYTES :]
    body = _decode_body(kind, raw[start:signed], header)
    if isinstance(body, Result) and compute_commitment(header) != body.commitment:
        raise WireError("gossip: the header does not hash to the commitment (R1)")
    run_uid, epoch, height, member = PREFIX.read_values(raw[len(tag) : start])
    return Gossip(run_uid, epoch, height, member, body, raw[signed : signed + SIGNATURE_BYTES])


def is_signed_by(message: Gossip, p2p: bytes) -> bool:
    """Whether the member whose key is `p2p` signed the message."""
    return verify(p2p, get_signed_bytes(message), message.signature)
