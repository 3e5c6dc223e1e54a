"""V13: evidence reads back whole, and not at all where a bit is wrong."""

import hashlib
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from psyche.core.encoding.evidence import NEEDED, Evidence, SignedResult, decode_evidence, encode_evidence
from psyche.core.encoding.header import NumericClass, ResultHeader, ResultKind, encode_header
from psyche.core.state.enums import AuditReason
from psyche.core.state.limits import STORED_ROUNDS
from psyche.errors import WireError
from psyche.testing.builders import build_hash

HEADER = ResultHeader(
    build_hash("run"), 1, 2, 3, 4, 5, 6, 7, build_hash("plan"), build_hash("config"), build_hash("D"),
    build_hash("data"), build_hash("before"), build_hash("body"), 8, 9, NumericClass.FP32,
    build_hash("key"),
)  # fmt: skip
TRAINED = SignedResult(encode_header(HEADER), bytes(64))
REPORT = SignedResult(encode_header(replace(HEADER, result_kind=ResultKind.AUDIT)), bytes(64), b"8 bytes.")
PARTS: dict[str, Any] = {
    "table": b"table", "values": (0.5,) * 64, "tokens": b"\1\0\0\0\2\0\0\0", "payload": b"payload", "opening": b"open",
}  # fmt: skip
RECORD = bytes(165_192)


def build(reason: AuditReason) -> Evidence:
    needed = {name: part for name, part in PARTS.items() if name in NEEDED[reason]}
    return Evidence(reason, 3, 0.02, 0.5, RECORD, (TRAINED,), b"last body", **needed)


GOOD = build(AuditReason.GRADIENT)
RAW = encode_evidence(GOOD)
AT = 30 + 4 + len(RECORD) + 4  # of the results


def seal(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize("reason", NEEDED)
def test_v13_evidence_reads_back(reason: AuditReason) -> None:
    good = build(reason)
    assert decode_evidence(encode_evidence(good)) == good
    reported = replace(good, results=(REPORT, REPORT, TRAINED), last_result=b"")
    assert decode_evidence(encode_evidence(reported)) == reported


def test_v13_every_accusation_has_evidence() -> None:
    assert set(NEEDED) == set(AuditReason) - {AuditReason.NONE}


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
        (b"PSYCHEXX" + RAW[8:-32], "kind or version 2 is not known"),
        (RAW[:8] + b"\1\0" + RAW[10:-32], "kind or version 1 is not known"),
        (RAW[:10] + b"\0\0" + RAW[12:-32], "reason: 0 accuses nobody"),
        (RAW[:10] + b"\x0a\0" + RAW[12:-32], "reason: 10 accuses nobody"),
        (RAW[:-32] + b"\0", "last part"),
        (RAW[:-33], "opening"),
        (RAW[:30] + b"\x47\x85\2\0" + RAW[34:-32], "record: 165191 bytes, must be 165192"),
        (RAW[: AT - 4] + b"\xff\xff\xff\xff" + RAW[AT:-32], "results: 4294967295 bytes, must be up to"),
    ],
)
def test_v13_what_is_sealed_but_no_evidence_is_refused_by_part(content: bytes, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        decode_evidence(seal(content))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"piece": 65_536}, "reason, piece or values"),
        ({"values": (0.5,) * 63}, "reason, piece or values"),
        ({"values": (math.nan,) * 64}, "values: a number is not finite"),
        ({"values": (2.0**61,) * 64}, "values: a number is not finite"),
        ({"values": (1e300,) * 64}, "reason, piece or values"),
        ({"values": ()}, "values: is missing"),
        ({"tokens": b"\1\0\0"}, "tokens: must be ids"),
        ({"tokens": b""}, "tokens: is missing, or not asked for by the reason gradient"),
        ({"payload": b"x"}, "payload: is missing, or not asked for"),
        ({"reason": AuditReason.MOMENTUM}, "not asked for by the reason momentum"),
        ({"tolerance": 0.0}, "tolerance or calibration"),
        ({"tolerance": 0.05}, "tolerance or calibration"),
        ({"tolerance": math.nan}, "tolerance or calibration"),
        ({"calibration": -1.0}, "tolerance or calibration"),
        ({"calibration": math.inf}, "tolerance or calibration"),
        ({"record": b""}, "record: 0 bytes, must be 165192"),
        ({"results": ()}, "results: 0 bytes are left"),
        ({"results": (replace(TRAINED, signature=bytes(63)),)}, "results: 63 bytes are left"),
        ({"results": (replace(TRAINED, header=bytes(448)),)}, "magic"),
        ({"results": (TRAINED, TRAINED)}, "results: 512 bytes follow"),
        ({"results": (REPORT,)}, "results: 0 bytes are left"),
        ({"results": (replace(REPORT, report=b""),)}, "results: 0 bytes are left, 8 are needed"),
        ({"results": (REPORT,) * STORED_ROUNDS}, "results: more than 4"),
    ],
)
def test_v13_nobody_writes_what_nobody_reads(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode_evidence(replace(GOOD, **changes))  # pyright: ignore[reportArgumentType]


def test_v13_a_report_without_rows_is_refused() -> None:
    empty = replace(HEADER, result_kind=ResultKind.AUDIT, body_len=0)
    with pytest.raises(WireError, match="a report without rows"):
        encode_evidence(replace(GOOD, results=(SignedResult(encode_header(empty), bytes(64)), TRAINED)))
