"""R2: signed gossip as bytes."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.state.gossip import Finished, Gossip, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.errors import WireError
from psyche.testing.builders import build_hash, build_identity
from psyche.wire.crypto import compute_commitment
from psyche.wire.gossip import decode_gossip, encode_gossip, get_signed_bytes, is_signed_by, sign_gossip

HEADER = bytes(range(224)) * 2
HASH = st.binary(min_size=32, max_size=32)
BITS = st.integers(0, (1 << 256) - 1)
READY = st.builds(Ready, HASH, st.sampled_from(range(4)).map(ReadyFlag))
BODIES = st.one_of(
    READY, st.builds(Finished, BITS, HASH, BITS, st.none() | READY), st.just(Leave()),
    st.just(Result(compute_commitment(HEADER), HEADER)),
)  # fmt: skip
IDENTITY = build_identity("own")


def sign(body: GossipBody, member: int = 2) -> Gossip:
    return sign_gossip(IDENTITY, build_hash("run"), 1, 3, member, body)


@given(body=BODIES, epoch=st.integers(0, 65_535), height=st.integers(0, (1 << 32) - 1), member=st.integers(0, 255))
def test_r2_every_message_reads_back_and_its_signature_holds(
    body: GossipBody, epoch: int, height: int, member: int
) -> None:
    message = sign_gossip(IDENTITY, build_hash("run"), epoch, height, member, body)
    assert decode_gossip(encode_gossip(message)) == message
    assert is_signed_by(message, IDENTITY.public)
    assert not is_signed_by(replace(message, member=(member + 1) % 256), IDENTITY.public)


def test_r2_exactly_87_bytes_of_a_result_are_signed() -> None:
    result = Result(compute_commitment(HEADER), HEADER)
    signed = get_signed_bytes(sign(result))
    place = build_hash("run") + struct.pack("<HIH", 1, 3, 2)
    assert signed == b"psyche/result/1" + place + result.commitment
    assert len(signed) == 87


def test_r2_the_bytes_of_each_body_are_those_of_the_reference() -> None:
    place = build_hash("run") + struct.pack("<HIH", 1, 3, 2)
    ready = Ready(build_hash("digest"), ReadyFlag.DIVERGED)
    finished = Finished(1 << 8, build_hash("root"), 5, ready)
    held, seen = b"\0\1" + bytes(30), b"\5" + bytes(31)
    assert get_signed_bytes(sign(ready)) == b"psyche/ready/1" + place + ready.digest + b"\2"
    whole = b"psyche/finished/1" + place + held + build_hash("root") + seen
    assert get_signed_bytes(sign(finished)) == whole + ready.digest + b"\2"
    assert get_signed_bytes(sign(replace(finished, ready=None))) == whole
    assert get_signed_bytes(sign(Leave())) == b"psyche/leave/1" + place


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [
        (0, b"X", "unknown tag"),
        (14 + 38, b"\0\1", r"Gossip\.member: 256 is above the limit of 255"),
        (14 + 40 + 32, b"\4", r"Ready\.flags: 4 is no set of ReadyFlag"),
    ],
)
def test_r2_a_field_out_of_its_range_is_refused_by_its_name(offset: int, value: bytes, rule: str) -> None:
    raw = encode_gossip(sign(Ready(build_hash("digest"), ReadyFlag(0))))
    with pytest.raises(WireError, match=rule):
        decode_gossip(raw[:offset] + value + raw[offset + len(value) :])


def test_r2_a_message_of_another_length_is_refused() -> None:
    for body in (Ready(build_hash("digest"), ReadyFlag(0)), Finished(0, bytes(32), 0), Leave()):
        raw = encode_gossip(sign(body))
        for other in (raw[:-1], raw + b"\0"):
            with pytest.raises(WireError, match=rf"{type(body).__name__} of {len(other)} bytes"):
                decode_gossip(other)


def test_r1_a_result_whose_header_does_not_hash_to_its_commitment_is_refused() -> None:
    raw = encode_gossip(sign(Result(compute_commitment(HEADER), HEADER)))
    with pytest.raises(WireError, match="R1"):
        decode_gossip(raw[:-1] + b"\xff")


def test_r2_a_value_that_does_not_fit_is_refused_by_its_name() -> None:
    with pytest.raises(WireError, match=r"Gossip\.member: 256"):
        sign(Leave(), member=256)
    with pytest.raises(WireError, match=r"Finished\.held: "):
        sign(Finished(1 << 256, bytes(32), 0))
    with pytest.raises(WireError, match=r"Ready\.digest: 31 bytes, must be 32"):
        sign(Ready(bytes(31), ReadyFlag(0)))
