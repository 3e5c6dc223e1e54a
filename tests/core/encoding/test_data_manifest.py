"""The canonical bytes of data manifests (D1)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from psyche.core.encoding.data_manifest import (
    DATA_CHUNK_BYTES,
    WHOLE_BYTES,
    DataFile,
    DataManifest,
    count_data_chunks,
    decode_data_manifest,
    encode_data_manifest,
)
from psyche.errors import WireError
from psyche.wire.crypto import blob_id_of

FILES = [DataFile("b.npy", "", 134, 128, 3, b"\2" * 32), DataFile("a.bin", '"x"', 6, 0, 3, b"\1" * 32)]
BYTES = (
    b"psyche/data/1\x02\x01\x02\0\0\0"
    + (b'\x05\0a.bin\x03\0"x"' + b"\x06" + bytes(7) + bytes(4) + b"\x03" + bytes(7) + b"\x01" * 32)
    + (b"\x05\0b.npy\0\0" + b"\x86" + bytes(7) + b"\x80\0\0\0" + b"\x03" + bytes(7) + b"\x02" * 32)
)


def test_a_manifest_has_exactly_these_bytes_and_this_id_in_order_of_names() -> None:
    assert encode_data_manifest(2, FILES, is_hashed=True) == BYTES
    assert encode_data_manifest(2, reversed(FILES), is_hashed=True) == BYTES
    assert blob_id_of(BYTES).hex() == "cddc0a71288054033fa142fde577ca01ef143ece2df7be69e86a50d0897cc038"


@st.composite
def build_manifests(draw: st.DrawFn) -> DataManifest:
    size, is_hashed = draw(st.sampled_from((2, 4))), draw(st.booleans())
    names = draw(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), min_size=1, unique=True))
    files: list[DataFile] = []
    for name in sorted(names):
        offset, tokens = draw(st.integers(0, 200)), draw(st.integers(0, 3 * DATA_CHUNK_BYTES))
        hashes = draw(st.binary(min_size=32, max_size=32)) * count_data_chunks(offset + tokens * size)
        version = draw(st.text(st.characters(codec="utf-8"), max_size=9))
        files.append(DataFile(name, version, offset + tokens * size, offset, tokens, hashes if is_hashed else b""))
    return DataManifest(size, is_hashed, tuple(files))


@given(build_manifests())
def test_a_manifest_reads_back(manifest: DataManifest) -> None:
    raw = encode_data_manifest(manifest.token_size_bytes, reversed(manifest.files), is_hashed=manifest.is_hashed)
    assert decode_data_manifest(raw) == manifest


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
@example(len(b"psyche/data/1") + 1, 2)  # neither with hashes nor without
def test_changed_bytes_are_refused_or_mean_something_else(place: int, change: int) -> None:
    raw = bytearray(BYTES)
    raw[place] ^= change
    try:
        found = decode_data_manifest(bytes(raw))
    except WireError:
        return
    assert encode_data_manifest(found.token_size_bytes, found.files, is_hashed=found.is_hashed) == raw
    assert found != decode_data_manifest(BYTES)


@given(st.integers(0, len(BYTES) - 1), st.binary(min_size=1, max_size=3))
def test_a_cut_or_longer_manifest_is_refused(length: int, more: bytes) -> None:
    for raw in (BYTES[:length], BYTES + more):
        with pytest.raises(WireError, match="data manifest: "):
            decode_data_manifest(raw)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": "b.npy"}, "names do not rise"),
        ({"name": ""}, "1 to 1024 bytes"),
        ({"name": "a" * 1_025}, "1 to 1024 bytes"),
        ({"tokens": 4}, "do not fill the file"),
        ({"hashes": b""}, "each MiB needs a hash"),
    ],
    ids=["twice", "no name", "long name", "tokens", "hashes"],
)
def test_files_that_break_a_rule_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(WireError, match=text):
        encode_data_manifest(2, [FILES[0], replace(FILES[1], **changes)], is_hashed=True)


def test_no_files_and_another_token_size_are_refused() -> None:
    with pytest.raises(WireError, match="0 files"):
        encode_data_manifest(2, [], is_hashed=False)
    with pytest.raises(WireError, match="token size is 3 bytes, must be 1, 2 or 4"):
        encode_data_manifest(3, FILES, is_hashed=True)


def test_of_files_in_another_form_the_bytes_are_counted() -> None:
    rows = DataFile("train.parquet", "", 7, 0, 7)
    assert decode_data_manifest(encode_data_manifest(WHOLE_BYTES, [rows], is_hashed=False)).files == (rows,)


def test_what_the_format_cannot_hold_is_refused_by_the_name_of_the_file() -> None:
    with pytest.raises(WireError, match=r"data manifest: 'a\.bin': "):
        encode_data_manifest(2, [replace(FILES[1], version="v" * (1 << 16))], is_hashed=True)


def test_more_files_than_a_manifest_may_have_are_refused_before_they_are_read() -> None:
    with pytest.raises(WireError, match="4294967295 files, at most"):
        decode_data_manifest(BYTES[:15] + b"\xff" * 4)
