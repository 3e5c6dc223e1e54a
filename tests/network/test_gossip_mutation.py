"""B11: every byte of a signed message and of a result's header counts; flipping any is noticed."""

from collections.abc import Callable

import pytest
from network_kit import RUN

from psyche.core.encoding.header import NumericClass, ResultHeader, decode_header, encode_header
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.core.state.limits import HEADER_BYTES
from psyche.errors import WireError
from psyche.testing.builders import build_identity
from psyche.wire.crypto import compute_commitment
from psyche.wire.gossip import decode_gossip, encode_gossip, is_signed_by, sign_gossip

IDENTITY = build_identity(3)
MEMBER, EPOCH, HEIGHT = 4, 2, 70_000


def build_header() -> bytes:
    return encode_header(
        ResultHeader(
            run_uid=RUN, epoch=EPOCH, member=MEMBER, height=HEIGHT, step=9, lr_bits=0x3A83126F, batch_start=640,
            batch_end=671, plan_hash=b"p" * 32, config_hash=b"c" * 32, base_digest=b"d" * 32, data_hash=b"t" * 32,
            prev_commitment=b"v" * 32, body_hash=b"b" * 32, body_len=123_456, train_count=3,
            numeric_class=NumericClass.BF16, trainer_key=b"k" * 32, momentum_before=b"1" * 32,
            momentum_after=b"2" * 32, lookahead_root=b"3" * 32, work_root=b"4" * 32, flags=0,
        )
    )  # fmt: skip


def build_result() -> GossipBody:
    header = build_header()
    return Result(compute_commitment(header), header)


BODIES: dict[str, Callable[[], GossipBody]] = {
    "result": build_result,
    "ready": lambda: Ready(b"d" * 32, ReadyFlag.BEHIND),
    "finished": lambda: Finished(0b1011, b"r" * 32, 1 << 255),
    "finished with ready": lambda: Finished(0b1011, b"r" * 32, 1 << 255, Ready(b"d" * 32, ReadyFlag.DIVERGED)),
    "leave": Leave,
}


def is_accepted(raw: bytes) -> Gossip | None:
    """What a client accepts of a peer whose key is on record as that of MEMBER, for this run and round."""
    try:
        message = decode_gossip(raw)
    except WireError:
        return None
    named = (message.run_uid, message.epoch, message.height, message.member) == (RUN, EPOCH, HEIGHT, MEMBER)
    return message if named and is_signed_by(message, IDENTITY.public) else None


@pytest.mark.parametrize("kind", BODIES)
def test_a_signed_message_with_any_byte_flipped_is_refused(kind: str) -> None:
    signed = sign_gossip(IDENTITY, RUN, EPOCH, HEIGHT, MEMBER, BODIES[kind]())
    raw = encode_gossip(signed)
    assert is_accepted(raw) == signed
    for position in range(len(raw)):
        for mask in (0x01, 0x80, 0xFF):
            changed = raw[:position] + bytes([raw[position] ^ mask]) + raw[position + 1 :]
            assert is_accepted(changed) is None, f"byte {position} of {kind} does not count"


def test_a_header_with_any_bit_flipped_is_another_commitment_or_no_header_at_all() -> None:
    """Nothing of a header is outside its hash, and a header that does not encode back is refused (R1, R3)."""
    header = build_header()
    commitment = compute_commitment(header)
    read = decode_header(header)
    for bit in range(8 * HEADER_BYTES):
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        assert compute_commitment(bytes(changed)) != commitment
        try:
            other = decode_header(bytes(changed))
        except WireError:
            continue
        assert other != read, f"bit {bit} is not part of any field"
