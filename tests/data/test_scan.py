"""Token ids that the model does not have are found before training; how much is read has a limit."""

from pathlib import Path

import numpy as np
import pytest

from psyche.data.files import open_token_file
from psyche.data.local import TokenRows
from psyche.data.scan import PIECE_BYTES, find_foreign_token
from psyche.errors import UnusableDataError

PIECE = PIECE_BYTES // 2  # in tokens of two bytes


def write(path: Path, tokens: int, foreign: dict[int, int] | None = None) -> Path:
    ids = np.zeros(tokens, dtype="<u2")
    for position, token in (foreign or {}).items():
        ids[position] = token
    path.write_bytes(ids.tobytes())
    return path


def test_an_id_beyond_the_vocabulary_is_named_with_its_place(tmp_path: Path) -> None:
    first = write(tmp_path / "a.bin", 100)
    second = write(tmp_path / "b.bin", 2 * PIECE + 7, {5: 3_999, 2 * PIECE + 6: 4_000})
    rows = TokenRows([first, second], 2, 10, vocab_size=4_000)
    with pytest.raises(UnusableDataError) as caught:
        rows.check_vocabulary()
    assert f"{second}: token 4000 at position {2 * PIECE + 6} is not below the vocabulary's size 4000" in str(
        caught.value
    )
    TokenRows([first, second], 2, 10, vocab_size=4_001).check_vocabulary()
    TokenRows([first, second], 2, 10).check_vocabulary()


def test_a_batch_with_such_an_id_is_unusable_too(tmp_path: Path) -> None:
    rows = TokenRows([write(tmp_path / "a.bin", 100, {37: 9})], 2, 10, vocab_size=9)
    rows.samples(0, 2)
    with pytest.raises(UnusableDataError, match="token 9 at position 37"):
        rows.samples(3, 3)


def test_large_files_are_scanned_in_places_that_lie_evenly(tmp_path: Path) -> None:
    large = open_token_file(write(tmp_path / "a.bin", 8 * PIECE, {4 * PIECE + 1: 7}), 2)
    small = open_token_file(write(tmp_path / "b.bin", 3, {2: 7}), 2)
    for limit, found in ((8, True), (2, True), (1, False)):
        assert (find_foreign_token([large], 7, max_bytes=limit * PIECE_BYTES) is not None) == found
    last = find_foreign_token([open_token_file(write(tmp_path / "c.bin", 0), 2), large, small], 7, max_bytes=1)
    assert last is not None
    assert last.file == str(small.path), "a place of each file is scanned"


def test_of_many_small_files_not_much_more_is_read_than_of_a_large_one(tmp_path: Path) -> None:
    tokens, foreign = 40_000, 30_000
    files = [open_token_file(write(tmp_path / f"{n}.bin", tokens, {foreign: 7}), 2) for n in range(4)]
    assert find_foreign_token(files, 7, max_bytes=tokens) is None, "an eighth of each, at most"
    assert find_foreign_token(files, 7) is not None
