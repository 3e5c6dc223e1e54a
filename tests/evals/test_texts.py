"""What weights write, as a message that strangers may send too."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.errors import WireError
from psyche.evals.texts import (
    FIXED_BYTES,
    MAX_TEXT_BYTES,
    PROMPTS,
    TAG,
    WrittenText,
    choose_prompt,
    choose_writer,
    cut_text,
    decode_text,
    encode_text,
    is_text_of,
    sign_text,
)
from psyche.wire.crypto import Identity, blake3_hash

IDENTITY = Identity(b"i" * 32)
TEXT = sign_text(IDENTITY, WrittenText(run_uid=b"r" * 32, digest=b"d" * 32, epoch=7, member=3, text="a mat."))


@given(text=st.text())
def test_a_text_comes_back_as_it_was_signed_and_fits_into_a_message(text: str) -> None:
    signed = sign_text(IDENTITY, replace(TEXT, text=cut_text(text * 100)))
    raw = encode_text(signed)
    assert len(raw) <= FIXED_BYTES + MAX_TEXT_BYTES < 4_096
    assert decode_text(raw) == signed
    assert is_text_of(signed, IDENTITY.public)
    assert not is_text_of(replace(signed, text=signed.text + "!"), IDENTITY.public)


@given(raw=st.binary(max_size=300).map(TAG.__add__))
def test_bytes_are_a_text_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        assert encode_text(decode_text(raw)) == raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (encode_text(TEXT)[:140], "text of weights: 140 bytes that begin with"),
        (encode_text(replace(TEXT, text="x" * 2_049)), "must be 145 to 2193 that begin with"),
        (encode_text(TEXT).replace(b"mat", b"m\xfft"), "text of weights: is not UTF-8"),
        (encode_text(TEXT).replace(b"\7\0\3\0", b"\7\0\3\1"), "WrittenText.member: 259 is above the limit of 255"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        decode_text(raw)


def test_weights_draw_their_prompt_and_their_writer_among_all() -> None:
    digests = [blake3_hash(bytes([number])) for number in range(200)]
    assert {choose_prompt(digest) for digest in digests} == set(PROMPTS)
    assert {choose_writer(digest, 5) for digest in digests} == set(range(5))
    assert len({(choose_prompt(digest), choose_writer(digest, 5)) for digest in digests}) > 30
