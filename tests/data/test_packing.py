"""Samples become rows: whole or cut, each once, in an order that the seed decides."""

from collections.abc import Iterable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from pyarrow import parquet

from psyche.data.prepared import packing, writing
from psyche.data.prepared.packing import Mode, Piece, Samples, build_row, fill, pack
from psyche.data.prepared.rows import open_rows
from psyche.data.prepared.writing import RowWriter
from psyche.wire.data import BEGINS

SIZES = [3, 5, 2, 4, 1, 3]


def place(sizes: Iterable[int]) -> list[Piece]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(Piece(start, start + size))
        start += size
    return pieces


def name(rows: Iterable[list[Piece]]) -> list[list[int]]:
    return [[piece.end - piece.start for piece in row] for row in rows]


def test_the_longest_go_first_each_into_the_first_row_with_room() -> None:
    assert name(pack(iter(place(SIZES)), 6, "ffd", Random(0))) == [[5, 1], [4, 2], [3, 3]]


def test_as_they_come_each_goes_into_some_row_with_room_and_the_seed_decides_which() -> None:
    samples = place(Random(1).choices(range(1, 60), k=400))
    first, again, other = (list(pack(iter(samples), 64, "random_fit", Random(seed))) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert max(sum(row) for row in name(first)) <= 64
    assert sorted(piece for row in first for piece in row) == samples
    assert len(first) < 1.2 * sum(piece.end - piece.start for piece in samples) / 64


@pytest.mark.parametrize("mode", ["ffd", "random_fit"])
def test_a_place_is_sought_within_a_group_and_no_sample_is_lost_between_groups(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "GROUP_SAMPLES", 2)
    rows = list(pack(iter(place(SIZES)), 6, mode, Random(0)))
    assert sorted(piece for row in rows for piece in row) == place(SIZES)
    assert [sorted(row) for row in name(rows)] != [[1, 5], [2, 4], [3, 3]]


def test_texts_follow_each_other_and_go_on_in_the_next_row() -> None:
    assert name(fill(iter(place([4, 9, 3])), 5)) == [[4, 1], [5], [3, 2], [1]]


def test_a_row_has_labels_places_and_lengths_and_its_rest_is_a_sequence_that_does_not_count(tmp_path: Path) -> None:
    with Samples(tmp_path / "samples") as samples:
        samples.add(np.array([5, 6, 7], np.int32), np.array([False, False, True]))
        samples.add(np.array([0, 8], np.int32), np.array([False, True]))
        row = build_row(samples.finish(), place([3, 2]), 8, padding=9)
    assert row.inputs.tolist() == [5, 6, 7, 0, 8, 9, 9, 9]
    assert row.labels.tolist() == [-100, -100, 7, -100, 8, -100, -100, -100]
    assert row.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert row.sequence_lengths == [3, 2, 3]


def test_each_pass_has_all_samples_in_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "GROUP_SAMPLES", 16)
    with Samples(tmp_path / "samples") as samples:
        for number in range(50):
            samples.add(np.full(1 + number % 3, number, np.int32), np.ones(1 + number % 3, bool))
        first, again, second = (list(samples.shuffle(5, number)) for number in (0, 0, 1))
        samples.finish()
    assert first == again
    assert first != second
    assert sorted(first) == sorted(second) == place(1 + number % 3 for number in range(50))


def test_rows_are_written_in_groups_and_files_of_a_bounded_size_with_the_original_s_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "GROUP_TOKENS", 3 * 4)
    monkeypatch.setattr(writing, "FILE_TOKENS", 7 * 4)
    writer = RowWriter(tmp_path, 4)
    tokens = np.arange(40, dtype=np.int32)
    for number in range(10):
        writer.add(build_row(tokens, [Piece(4 * number, 4 * number + 3)], 4, padding=0))
    paths = writer.finish()
    assert [path.name for path in paths] == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    files = [parquet.ParquetFile(path) for path in paths]
    assert [[file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] for file in files] == [
        [3, 3], [3, 1],
    ]  # fmt: skip
    types = {field.name: str(field.type) for field in files[0].schema_arrow}
    numbers = "large_list<element: int32>"
    assert types == {
        "inputs": numbers, "labels": numbers, "position_ids": numbers, "sequence_lengths": "large_list<element: int64>",
    }  # fmt: skip
    read = open_rows(tmp_path, 4, has_labels=True).samples(0, 9).reshape(10, 4, 3)
    assert read[:, :3, 0].tolist() == [[4 * number + i for i in range(3)] for number in range(10)]
    assert read[0, :, 2].tolist() == [BEGINS, 1, 2, BEGINS]
