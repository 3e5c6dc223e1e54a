"""What weights write, as a message that strangers may send too."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.errors import WireError
from psyche.evals.texts import (
    PROMPTS,
    TEXTS,
    WrittenText,
    choose_prompt,
    choose_writer,
    cut_text,
)
from psyche.wire.crypto import Identity, blake3_hash

IDENTITY = Identity(b"i" * 32)
TEXT = TEXTS.sign(IDENTITY, WrittenText(run_uid=b"r" * 32, digest=b"d" * 32, epoch=7, member=3, text="a mat."))


@given(text=st.text())
def test_a_text_comes_back_as_it_was_signed_and_fits_into_a_message(text: str) -> None:
    signed = TEXTS.sign(IDENTITY, replace(TEXT, text=cut_text(text * 100)))
    raw = TEXTS.encode(signed)
    assert len(raw) <= TEXTS.most_bytes < 4_096
    assert TEXTS.decode(raw) == signed
    assert TEXTS.is_signed_by(signed, IDENTITY.public)
    assert not TEXTS.is_signed_by(replace(signed, text=signed.text + "!"), IDENTITY.public)


@given(raw=st.binary(max_size=300).map(TEXTS.tag.__add__))
def test_bytes_are_a_text_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        assert TEXTS.encode(TEXTS.decode(raw)) == raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (TEXTS.encode(TEXT)[:140], "text of weights: 140 bytes that begin with"),
        (TEXTS.encode(replace(TEXT, text="x" * 2_049)), "must be 145 to 2193 that begin with"),
        (TEXTS.encode(TEXT).replace(b"mat", b"m\xfft"), "text of weights: is not UTF-8"),
        (TEXTS.encode(TEXT).replace(b"\7\0\3\0", b"\7\0\3\1"), "WrittenText.member: 259 is above the limit of 255"),
    ],
)
def test_what_is_wrong_with_a_text_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words):
        TEXTS.decode(raw)


def test_weights_draw_their_prompt_and_their_writer_among_all() -> None:
    digests = [blake3_hash(bytes([number])) for number in range(200)]
    assert {choose_prompt(digest) for digest in digests} == set(PROMPTS)
    assert {choose_writer(digest, 5) for digest in digests} == set(range(5))
    assert len({(choose_prompt(digest), choose_writer(digest, 5)) for digest in digests}) > 30
