"""R2: what is signed of each message, byte by byte."""

import struct
from dataclasses import replace

import pytest

from psyche.core.encoding.gossip import BODIES, PREFIX, TAGS
from psyche.core.state.gossip import Finished, Gossip, GossipBody, Leave, Ready, ReadyFlag, Result
from psyche.errors import WireError
from psyche.testing.builders import build_hash

READY = Ready(build_hash("digest"), ReadyFlag.DIVERGED)
FINISHED = Finished(1 << 8, build_hash("root"), 5)
MESSAGE = Gossip(build_hash("run"), 1, 3, 255, Leave(), bytes(64))


def test_r2_every_kind_has_its_tag() -> None:
    assert {
        b"psyche/result/1": Result,
        b"psyche/ready/1": Ready,
        b"psyche/finished/1": Finished,
        b"psyche/leave/1": Leave,
    } == TAGS


def test_r2_each_message_says_of_which_run_epoch_round_and_member_it_is() -> None:
    raw = PREFIX.write(MESSAGE)
    assert raw == build_hash("run") + struct.pack("<HIH", 1, 3, 255)
    assert PREFIX.read_values(raw) == [build_hash("run"), 1, 3, 255]


@pytest.mark.parametrize(
    ("body", "raw"),
    [
        (Result(build_hash("commitment"), b""), build_hash("commitment")),
        (READY, build_hash("digest") + b"\2"),
        (FINISHED, b"\0\1" + bytes(30) + build_hash("root") + b"\5" + bytes(31)),
        (Leave(), b""),
    ],
)
def test_r2_the_bytes_of_each_body_are_those_of_the_reference(body: GossipBody, raw: bytes) -> None:
    assert BODIES[type(body)].write(body) == raw


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (Result(bytes(31), b""), r"Result\.commitment: 31 bytes, must be 32"),
        (Ready(bytes(33), ReadyFlag(0)), r"Ready\.digest: 33 bytes, must be 32"),
        (replace(FINISHED, held=1 << 256), r"Finished\.held: "),
        (replace(FINISHED, seen=-1), r"Finished\.seen: "),
    ],
)
def test_r2_a_value_that_does_not_fit_is_refused_by_its_name(body: GossipBody, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        BODIES[type(body)].write(body)


def test_r2_a_member_is_below_256_and_flags_are_known() -> None:
    with pytest.raises(WireError, match=r"Gossip\.member: 256 is above the limit of 255"):
        PREFIX.write(replace(MESSAGE, member=256))
    with pytest.raises(WireError, match=r"Ready\.flags: 4 is no set of ReadyFlag"):
        BODIES[Ready].read_values(bytes(32) + b"\4")
