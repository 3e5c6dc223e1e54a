"""Local data: strict bounds, checked ids, an order that all machines share."""

import json
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from psyche.core.state.state import DataLocation, DataLocationKind
from psyche.data.dummy import DummyData
from psyche.data.files import find_token_size, open_token_file
from psyche.data.local import MAX_OPEN_FILES, TokenRows
from psyche.data.provider import LocalProvider, open_provider
from psyche.data.scan import PIECE_BYTES, find_foreign_token
from psyche.errors import DataError, UnusableDataError
from psyche.testing.builders import build_identity

SEED = bytes(range(32))
IDENTITY = build_identity("own")


def write_bin(path: Path, first: int, count: int, dtype: str = "<u2") -> Path:
    np.arange(first, first + count).astype(dtype).tofile(path)
    return path


def read_all(data: TokenRows) -> list[list[int]]:
    return data.samples(0, data.num_sequences - 1).tolist()


def test_rows_have_exactly_the_sequence_length_and_the_last_full_one_counts(tmp_path: Path) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 0, 12)], 2, 4)
    assert data.num_sequences == 3
    assert read_all(data) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert data.samples(1, 1).dtype == np.uint32


def test_what_fills_no_row_is_left_out_at_the_end_of_each_file(tmp_path: Path) -> None:
    write_bin(tmp_path / "b.bin", 100, 7)
    write_bin(tmp_path / "a.bin", 0, 5)
    write_bin(tmp_path / "c.bin", 200, 3)
    assert read_all(TokenRows([tmp_path], 2, 4)) == [[0, 1, 2, 3], [100, 101, 102, 103]]


def test_files_of_a_folder_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, first in (("c.bin", 8), ("a.bin", 0), ("b.npy", 4)):
        if name.endswith("npy"):
            np.save(tmp_path / name, np.arange(first, first + 4, dtype="<u2"))
        else:
            write_bin(tmp_path / name, first, 4)
    (tmp_path / "notes.txt").write_text("not data")
    assert read_all(TokenRows([tmp_path], 2, 4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_four_byte_tokens_keep_their_value(tmp_path: Path) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 100_000, 4, "<u4")], 4, 2)
    assert read_all(data) == [[100_000, 100_001], [100_002, 100_003]]


def test_more_files_than_are_kept_open_can_be_read(tmp_path: Path) -> None:
    for i in range(MAX_OPEN_FILES + 5):
        write_bin(tmp_path / f"{i:03}.bin", i, 1)
    data = TokenRows([tmp_path], 2, 1)
    for _ in range(2):
        assert data.samples(0, MAX_OPEN_FILES + 4).ravel().tolist() == list(range(MAX_OPEN_FILES + 5))


def test_a_seed_shuffles_without_loss_and_alike_for_all_who_share_it(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "a.bin", 0, 200)
    first, second = (read_all(TokenRows([path], 2, 2, SEED)) for _ in range(2))
    assert first == second
    assert sorted(first) == read_all(TokenRows([path], 2, 2)) != first


def test_past_the_end_a_new_shuffle_begins_and_says_so_once(tmp_path: Path) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 0, 50)], 2, 1, SEED)
    with capture_logs() as lines:
        first = data.samples(0, 49).ravel().tolist()
        assert lines == []
        across = data.samples(45, 54).ravel().tolist()
        second = data.samples(50, 99).ravel().tolist()
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert across == first[45:] + second[:5]
    assert [line["event"] for line in lines] == ["all data is used, starting over"]
    assert lines[0]["pass_number"] == 1


def test_past_the_end_unshuffled_data_repeats(tmp_path: Path) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 0, 3)], 2, 1)
    assert data.samples(2, 7).ravel().tolist() == [2, 0, 1, 2, 0, 1]


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (2, 1), (0, 1 << 62), (0, 65_535), (1 << 61, (1 << 61) + 70_000)])
def test_bounds_are_strict(tmp_path: Path, start: int, end: int) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 0, 10)], 2, 2)
    with pytest.raises(DataError, match=f"samples {start} to {end}"):
        data.samples(start, end)


def test_a_request_larger_than_a_gigabyte_is_refused_before_allocation(tmp_path: Path) -> None:
    data = TokenRows([write_bin(tmp_path / "a.bin", 0, 40_000)], 2, 40_000)
    with pytest.raises(DataError, match="too many for one request"):
        data.samples(0, 60_000)


def test_a_token_beyond_the_vocabulary_names_file_and_position(tmp_path: Path) -> None:
    write_bin(tmp_path / "a.bin", 0, 4)
    np.array([1, 2, 3, 300, 4, 5], dtype="<u2").tofile(tmp_path / "b.bin")
    data = TokenRows([tmp_path], 2, 2, vocab_size=256)
    assert data.samples(0, 2).shape == (3, 2)
    with pytest.raises(DataError, match=r"b\.bin: token 300 at position 3 is not below .* 256"):
        data.samples(0, 4)


def test_a_file_cut_in_the_middle_of_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(9))
    with pytest.raises(DataError, match="9 bytes are not a whole number of 2-byte tokens"):
        TokenRows([tmp_path], 2, 2)


def test_a_file_that_changes_its_size_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "a.bin", 0, 10)
    data = TokenRows([path], 2, 2)
    path.write_bytes(bytes(4))
    with pytest.raises(DataError, match="its size has changed"):
        data.samples(0, 0)
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        data.samples(0, 0)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(4, dtype="<u4"), "contains uint32, must be uint16"),
        (np.zeros(4, dtype=">u2"), "contains >u2, must be uint16"),
        (np.zeros(4, dtype="float32"), "contains float32"),
        (np.zeros((2, 2), dtype="<u2"), "2 dimensions, must have one"),
    ],
)
def test_an_npy_file_of_another_kind_is_refused(tmp_path: Path, array: np.ndarray, reason: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=reason):
        TokenRows([tmp_path], 2, 2)


def test_an_npy_header_that_lies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(100, dtype="<u2"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="the file is cut off"):
        TokenRows([path], 2, 2)
    path.write_bytes(b"\x93NUMPY\x09\x00junk")
    with pytest.raises(DataError, match="version"):
        TokenRows([path], 2, 2)
    path.write_bytes(b"no header at all")
    with pytest.raises(DataError, match=r"is not a \.npy file"):
        TokenRows([path], 2, 2)


def test_missing_paths_and_empty_folders_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        TokenRows([tmp_path / "missing"], 2, 2)
    with pytest.raises(DataError, match="psyche data tokenize"):
        TokenRows([tmp_path], 2, 2)
    write_bin(tmp_path / "a.bin", 0, 3)
    with pytest.raises(DataError, match="no file holds 4 tokens"):
        TokenRows([tmp_path], 2, 4)


def test_the_sidecar_guards_token_size_and_vocabulary(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "a.bin", 0, 8)
    sidecar = {"format": "psyche/tokens/1", "token_size_bytes": 2, "vocab_size": 300}
    (tmp_path / "a.json").write_text(json.dumps(sidecar))
    with pytest.raises(DataError, match="has tokens of 2 bytes"):
        TokenRows([path], 4, 2)
    with pytest.raises(DataError, match="a vocabulary of 300, but the model's has 256"):
        TokenRows([path], 2, 2, vocab_size=256)
    assert TokenRows([path], 2, 2, vocab_size=300).num_sequences == 4


def test_the_token_size_is_found_from_sidecar_header_or_vocabulary(tmp_path: Path) -> None:
    plain = write_bin(tmp_path / "plain.bin", 0, 8)
    assert find_token_size(plain, None) == find_token_size(plain, 65_536) == 2
    assert find_token_size(plain, 65_537) == 4
    (tmp_path / "plain.json").write_text(json.dumps({"format": "psyche/tokens/1", "token_size_bytes": 4}))
    assert find_token_size(plain, None) == 4
    np.save(tmp_path / "n.npy", np.zeros(4, dtype="<u4"))
    assert find_token_size(tmp_path / "n.npy", 256) == 4


async def test_a_provider_gives_little_endian_u32(tmp_path: Path) -> None:
    write_bin(tmp_path / "a.bin", 1, 4)
    location = DataLocation(DataLocationKind.LOCAL, "a.bin")
    provider = open_provider(location, sequence_length=2, vocab_size=5, folder=tmp_path, identity=IDENTITY)
    assert await provider.get(1, 1, epoch=3, height=4) == bytes([3, 0, 0, 0, 4, 0, 0, 0])
    await provider.aclose()


async def test_dummy_data_is_zeros_or_follows_from_the_index() -> None:
    assert not DummyData(4).samples(10**12, 10**12 + 1).any()
    data = DummyData(8, vocab_size=50)
    rows = data.samples(100, 199)
    assert rows.max() < 50
    assert len(np.unique(rows)) > 40
    assert np.array_equal(rows[3:6], data.samples(103, 105))
    assert len(await LocalProvider(data).get(0, 1)) == 2 * 8 * 4
    with pytest.raises(DataError):
        data.samples(1, 0)


# --- ids that the model does not have are found before training; how much is read has a limit

PIECE = PIECE_BYTES // 2  # in tokens of two bytes


def write_ids(path: Path, tokens: int, foreign: dict[int, int] | None = None) -> Path:
    ids = np.zeros(tokens, dtype="<u2")
    for position, token in (foreign or {}).items():
        ids[position] = token
    path.write_bytes(ids.tobytes())
    return path


def test_an_id_beyond_the_vocabulary_is_named_with_its_place(tmp_path: Path) -> None:
    first = write_ids(tmp_path / "a.bin", 100)
    second = write_ids(tmp_path / "b.bin", 2 * PIECE + 7, {5: 3_999, 2 * PIECE + 6: 4_000})
    rows = TokenRows([first, second], 2, 10, vocab_size=4_000)
    with pytest.raises(UnusableDataError) as caught:
        rows.check_vocabulary()
    assert f"{second}: token 4000 at position {2 * PIECE + 6} is not below the vocabulary's size 4000" in str(
        caught.value
    )
    TokenRows([first, second], 2, 10, vocab_size=4_001).check_vocabulary()
    TokenRows([first, second], 2, 10).check_vocabulary()


def test_large_files_are_scanned_in_places_that_lie_evenly(tmp_path: Path) -> None:
    large = open_token_file(write_ids(tmp_path / "a.bin", 8 * PIECE, {4 * PIECE + 1: 7}), 2)
    small = open_token_file(write_ids(tmp_path / "b.bin", 3, {2: 7}), 2)
    for limit, found in ((8, True), (2, True), (1, False)):
        assert (find_foreign_token([large], 7, max_bytes=limit * PIECE_BYTES) is not None) == found
    last = find_foreign_token([open_token_file(write_ids(tmp_path / "c.bin", 0), 2), large, small], 7, max_bytes=1)
    assert last is not None
    assert last.file == str(small.path), "a place of each file is scanned"


def test_of_many_small_files_not_much_more_is_read_than_of_a_large_one(tmp_path: Path) -> None:
    tokens, foreign = 40_000, 30_000
    files = [open_token_file(write_ids(tmp_path / f"{n}.bin", tokens, {foreign: 7}), 2) for n in range(4)]
    assert find_foreign_token(files, 7, max_bytes=tokens) is None, "an eighth of each, at most"
    assert find_foreign_token(files, 7) is not None
