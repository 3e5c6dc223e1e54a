import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.encoding.manifest import (
    FILE_NAMES,
    MAX_MODEL_FILES_BYTES,
    FileEntry,
    Manifest,
    TensorEntry,
    blank_values,
    compute_slice_chunks,
    decode_manifest,
    describe_file_differences,
    encode_manifest,
    encode_slice,
)
from psyche.errors import WireError

ENTRIES = [TensorEntry("b", (2, 3), b"\x02" * 32), TensorEntry("a", (), b"\x01" * 32)]
FILES = [FileEntry("tokenizer.json", 300, b"\x04" * 32), FileEntry("config.json", 2, b"\x03" * 32)]
FILES_BYTES = (
    b"\x02\0\0\0"
    + (b"\x0b\0config.json" + b"\x02" + bytes(7) + b"\x03" * 32)
    + (b"\x0e\0tokenizer.json" + b"\x2c\x01" + bytes(6) + b"\x04" * 32)
)
BYTES = (
    b"psyche/model/2"
    b"\x02\0\0\0"
    + (b"\x01\0a" + b"\0" + b"\x01" * 32)
    + (b"\x01\0b" + b"\x02" + b"\x02\0\0\0\x03\0\0\0" + b"\x02" * 32)
    + FILES_BYTES
)
LAST_IN_THE_MIDDLE = [TensorEntry(name, (), bytes(32)) for name in ("w", "x", "y")]
ENTRY = st.builds(
    TensorEntry,
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.lists(st.integers(0, (1 << 32) - 1), max_size=4).map(tuple),
    st.binary(min_size=32, max_size=32),
)


def test_a_manifest_has_exactly_these_bytes_in_order_of_names() -> None:
    assert encode_manifest(ENTRIES, FILES) == encode_manifest(reversed(ENTRIES), reversed(FILES)) == BYTES


FILE = st.builds(
    FileEntry, st.sampled_from(sorted(FILE_NAMES)), st.integers(0, 1 << 22), st.binary(min_size=32, max_size=32)
)


@given(
    st.lists(ENTRY, unique_by=lambda entry: entry.name), st.lists(FILE, unique_by=lambda file: file.name, max_size=11)
)
def test_a_manifest_reads_back(entries: list[TensorEntry], files: list[FileEntry]) -> None:
    raw = encode_manifest(entries, files)
    found = decode_manifest(raw)
    assert list(found.tensors) == sorted(entries, key=lambda entry: entry.name)
    assert list(found.files) == sorted(files, key=lambda file: file.name)
    assert encode_manifest(found.tensors, found.files) == raw


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_changed_bytes_are_refused_or_mean_something_else(place: int, change: int) -> None:
    raw = bytearray(BYTES)
    raw[place] ^= change
    try:
        decoded = decode_manifest(bytes(raw))
    except WireError:
        return
    assert encode_manifest(decoded.tensors, decoded.files) == raw
    assert decoded != decode_manifest(BYTES)


@given(st.integers(0, len(BYTES) - 1))
def test_a_cut_manifest_is_refused(length: int) -> None:
    with pytest.raises(WireError, match="manifest: "):
        decode_manifest(BYTES[:length])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (BYTES + b"\0", "1 bytes follow the end"),
        (b"psyche/model/1" + BYTES[14:], "tag: does not match"),
        (BYTES.replace(b"\x01\0a", b"\x01\0c"), "names do not rise at 'b'"),
        (BYTES.replace(b"\x01\0a", b"\x01\0b"), "names do not rise at 'b'"),
        (BYTES.replace(b"\x01\0a", b"\x01\0\xff"), "name: is not UTF-8"),
        (encode_manifest(LAST_IN_THE_MIDDLE, ()).replace(b"\x01\0x", b"\x01\0z", 1), "names do not rise at 'y'"),
        (b"psyche/model/2\xff\xff\xff\xff", "name: 0 bytes are left, 2 are needed"),
        (BYTES.replace(b"config.json", b"config.jsom"), "'config.jsom' is not allowed in a run's model"),
        (BYTES.replace(b"\x0e\0tokenizer", b"\x0e\0tokenized"), "'tokenized.json' is not allowed"),
        (BYTES.replace(b"config.json", b"../abc.json"), "'../abc.json' is not allowed"),
        (BYTES.replace(b"\x2c\x01" + bytes(6), bytes(3) + b"\x04" + bytes(4)), "the model files have 67108866 bytes"),
        (BYTES.replace(FILES_BYTES, b"\x02\0\0\0" + 2 * FILES_BYTES[4:57]), "do not rise at 'config.json'"),
        (BYTES.replace(FILES_BYTES, b"\x03\0\0\0" + FILES_BYTES[4:] + FILES_BYTES[57:]), "files do not rise at 'tok"),
        (BYTES.replace(FILES_BYTES, b"\x11\0\0\0" + FILES_BYTES[4:]), "17 model files, at most 16"),
        (BYTES.replace(FILES_BYTES, b"\x10\0\0\0" + FILES_BYTES[4:]), "file name: 0 bytes are left, 2 are needed"),
        (BYTES.replace(FILES_BYTES, b"\x03\0\0\0" + FILES_BYTES[4:]), "file name: 0 bytes are left, 2 are needed"),
    ],
)
def test_a_manifest_that_is_not_canonical_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        decode_manifest(raw)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([ENTRIES[0], ENTRIES[0]], "'b' appears twice"),
        ([TensorEntry("a", (1,), bytes(31))], "every blob id must have 32 bytes"),
        ([TensorEntry("a", (1 << 32,), bytes(32))], "tensor 'a' with dimensions"),
        ([TensorEntry("a" * 70_000, (1,), bytes(32))], "tensor 'aaa"),
        ([TensorEntry("a", (1,) * 256, bytes(32))], "tensor 'a' with dimensions"),
        ([TensorEntry("\ud800", (1,), bytes(32))], "surrogates not allowed"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(entries: list[TensorEntry], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        encode_manifest(entries, ())


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([FILES[0], FILES[0]], "'tokenizer.json' appears twice"),
        ([FileEntry("model.py", 1, bytes(32))], r"'model\.py' is not allowed"),
        ([FileEntry("config.json", 1, bytes(31))], "every blob id must have 32 bytes"),
        ([FileEntry("vocab.json", MAX_MODEL_FILES_BYTES, bytes(32)), FILES[1]], "bytes in all, at most 67108864"),
    ],
)
def test_files_that_no_model_of_a_run_may_have_are_refused(files: list[FileEntry], reason: str) -> None:
    """B25."""
    with pytest.raises(WireError, match=reason):
        encode_manifest([], files)
    encode_manifest([], [FileEntry("vocab.json", MAX_MODEL_FILES_BYTES, bytes(32))])


def test_a_manifest_without_values_still_says_names_shapes_and_files() -> None:
    """S2: full values are not exact; everything else is."""
    manifest = decode_manifest(BYTES)
    blank = blank_values(manifest)
    assert blank.files == manifest.files
    assert [(t.name, t.dims, t.blob_id) for t in blank.tensors] == [("a", (), bytes(32)), ("b", (2, 3), bytes(32))]
    assert isinstance(blank, Manifest)


def test_files_that_differ_are_told_apart() -> None:
    own = [FileEntry("config.json", 3, b"\x03" * 32), FILES[0], FileEntry("merges.txt", 1, bytes(32))]
    right = [FILES[1], FILES[0], FileEntry("vocab.json", 1, bytes(32))]
    assert (
        describe_file_differences(own, right)
        == "config.json (different content), vocab.json (missing), merges.txt (not part of the run's model)"
    )
    assert describe_file_differences(own, own) == ""


@given(st.integers(0, 300), st.lists(st.integers(0, (1 << 58) - 1), min_size=64, max_size=64))
def test_slices_of_64_different_rounds_cover_every_chunk_once(total: int, seeds: list[int]) -> None:
    covered = [c for i, seed in enumerate(seeds) for c in compute_slice_chunks(total, seed * 64 + i)]
    assert sorted(covered) == list(range(total))


def test_a_slice_is_what_the_seed_says() -> None:
    assert list(compute_slice_chunks(140, 64 * 9 + 5)) == [5, 69, 133]
    assert list(compute_slice_chunks(5, 63)) == []


def test_a_slice_has_exactly_these_bytes() -> None:
    raw = encode_slice([(69, b"\x02" * 32), (5, b"\x01" * 32)], FILES)
    chunks = b"\x02\0\0\0\x05\0\0\0" + b"\x01" * 32 + b"\x45\0\0\0" + b"\x02" * 32
    assert raw == b"psyche/model/2" + chunks + FILES_BYTES
    assert encode_slice([((1 << 32) - 1, bytes(32))], ())[18:22] == b"\xff" * 4
    assert encode_slice([], ()) == b"psyche/model/2" + bytes(8)
    assert encode_slice([(0, b"\x03" * 32)], ()) == b"psyche/model/2\x01\0\0\0" + bytes(4) + b"\x03" * 32 + bytes(4)


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([(1, bytes(32)), (1, b"\x01" * 32)], "appears twice"),
        ([(1, bytes(33))], "a hash of 32 bytes"),
        ([(-1, bytes(32))], "a number of 32 bits"),
        ([(1 << 32, bytes(32))], "a number of 32 bits"),
    ],
)
def test_a_slice_of_other_items_is_refused(items: list[tuple[int, bytes]], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        encode_slice(items, ())
