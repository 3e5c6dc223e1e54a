"""The header of a result, and what is signed: R1 to R3."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.encoding.header import NumericClass, ResultHeader, ResultKind, decode_header, encode_header
from psyche.core.state.state import ZERO32
from psyche.errors import WireError
from psyche.testing.builders import build_hash

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
HASH = st.binary(min_size=32, max_size=32)
WIDTHS = {"epoch": U16, "member": U16, "flags": U16, "piece_samples": U16, "inner_steps": U16,
          "batch_start": U64, "batch_end": U64, "body_len": U64,
          "numeric_class": st.sampled_from(NumericClass),
          "result_kind": st.sampled_from(ResultKind)}  # fmt: skip
HEADERS = st.builds(
    ResultHeader,
    **{f.name: WIDTHS.get(f.name, HASH if f.type in (bytes, "bytes") else U32) for f in fields(ResultHeader)},
)
HEADER = ResultHeader(
    run_uid=build_hash("run"), epoch=1, member=2, height=3, step=4, lr_bits=5, batch_start=6, batch_end=7,
    plan_hash=build_hash("plan"), config_hash=build_hash("config"), base_digest=build_hash("D"),
    data_hash=build_hash("data"), prev_commitment=ZERO32, body_hash=build_hash("body"), body_len=8, train_count=9,
    numeric_class=NumericClass.BF16, trainer_key=build_hash("key"),
)  # fmt: skip


@given(header=HEADERS)
def test_r1_a_header_has_448_bytes_and_reads_back(header: ResultHeader) -> None:
    raw = encode_header(header)
    assert len(raw) == 448
    assert decode_header(raw) == header


def test_r1_a_header_begins_with_its_magic_and_version_and_codes_are_fixed() -> None:
    raw = encode_header(HEADER)
    assert raw[:6] == b"PSYR\x01\x00"
    assert raw[404] == NumericClass.BF16 == 1
    assert HEADER.flags == 0
    assert raw[6:8] == bytes(2)


def test_r1_every_field_stands_in_the_bytes() -> None:
    raw = encode_header(HEADER)
    for field in fields(ResultHeader):
        value = getattr(HEADER, field.name)
        other = bytes(31) + b"\1" if isinstance(value, bytes) else NumericClass.FP32 if value == 1 else value + 1
        assert encode_header(replace(HEADER, **{field.name: other})) != raw, field.name


@pytest.mark.parametrize(
    ("offset", "value", "rule"),
    [
        (0, b"X", "magic"),
        (4, b"\2", "version"),
        (404, b"\2", "numeric_class"),
        (405, b"\2", "result_kind"),
        (447, b"\1", "not zero"),
    ],
)
def test_r3_a_header_that_is_not_canonical_is_refused(offset: int, value: bytes, rule: str) -> None:
    raw = encode_header(HEADER)
    with pytest.raises(WireError, match=rule):
        decode_header(raw[:offset] + value + raw[offset + 1 :])


def test_r3_a_header_of_another_length_is_refused() -> None:
    with pytest.raises(WireError, match="448"):
        decode_header(encode_header(HEADER)[:-1])


@pytest.mark.parametrize(("field", "value"), [("run_uid", bytes(31)), ("epoch", 1 << 16), ("height", -1)])
def test_r1_a_value_that_does_not_fit_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(WireError, match=rf"ResultHeader\.{field}: "):
        encode_header(replace(HEADER, **{field: value}))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("last", "place"),
    [(b"\1\x80\1" + bytes(5), 442), (bytes(2) + b"\x80" + bytes(5), 442), (bytes(3) + b"\x80\0\1\0\0", 443)],
)
def test_r3_the_first_byte_of_a_pad_that_is_not_zero_is_named(last: bytes, place: int) -> None:
    with pytest.raises(WireError, match=f"byte {place} is not zero"):
        decode_header(encode_header(HEADER)[:-8] + last)
