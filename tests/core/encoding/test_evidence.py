"""V13: evidence reads back whole, and not at all where a bit is wrong."""

import hashlib
import math
from dataclasses import replace
from random import Random

import pytest

from psyche.core.encoding.evidence import Evidence, decode_evidence, encode_evidence
from psyche.core.encoding.header import NumericClass, ResultHeader, encode_header
from psyche.errors import WireError
from psyche.testing.builders import build_hash

HEADER = ResultHeader(
    build_hash("run"), 1, 2, 3, 4, 5, 6, 7, build_hash("plan"), build_hash("config"), build_hash("D"),
    build_hash("data"), build_hash("before"), build_hash("body"), 8, 9, NumericClass.FP32,
    build_hash("key"),
)  # fmt: skip
GOOD = Evidence(
    3, encode_header(HEADER), bytes(64), b"table", b"last body", b"\1\0\0\0\2\0\0\0", bytes(165_192), (0.5,) * 64
)
RAW = encode_evidence(GOOD)


def seal(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def test_v13_evidence_reads_back() -> None:
    assert decode_evidence(RAW) == GOOD
    assert decode_evidence(encode_evidence(replace(GOOD, last_result=b""))).last_result == b""


def test_v13_a_file_that_is_cut_or_has_any_bit_flipped_is_refused() -> None:
    draw = Random(5)
    for _ in range(1_000):
        place = draw.choice((draw.randrange(len(RAW)), draw.randrange(700), len(RAW) - 1 - draw.randrange(400)))
        flipped = bytearray(RAW)
        flipped[place] ^= 1 << draw.randrange(8)
        for damaged in (bytes(flipped), RAW[:place]):
            with pytest.raises(WireError, match="evidence: the file is cut or damaged"):
                decode_evidence(damaged)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"PSYCHEXX" + RAW[8:-32], "kind or version 1 is not known"),
        (RAW[:8] + b"\2\0" + RAW[10:-32], "kind or version 2 is not known"),
        (RAW[:-32] + b"\0", "last part"),
        (RAW[:-33], "values"),
        (RAW[:12] + b"\xbf\1\0\0" + RAW[16:-32], "header: 447 bytes, must be 448"),
        (RAW[:532] + b"\xff\xff\xff\xff" + RAW[536:-32], "table: 4294967295 bytes, must be up to"),
    ],
)
def test_v13_what_is_sealed_but_no_evidence_is_refused_by_part(content: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        decode_evidence(seal(content))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"piece": 65_536}, "piece or values"),
        ({"values": (0.5,) * 63}, "piece or values"),
        ({"values": (math.nan,) * 64}, "values: a number is not finite"),
        ({"values": (2.0**61,) * 64}, "values: a number is not finite"),
        ({"values": (1e300,) * 64}, "piece or values"),
        ({"tokens": b"\1\0\0"}, "tokens: must be ids"),
        ({"tokens": b""}, "tokens: must be ids"),
        ({"signature": bytes(63)}, "signature: 63 bytes, must be 64"),
        ({"record": b""}, "record: 0 bytes, must be 165192"),
        ({"header": bytes(448)}, "magic"),
    ],
)
def test_v13_nobody_writes_what_nobody_reads(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode_evidence(replace(GOOD, **changes))  # pyright: ignore[reportArgumentType]
