"""Rows with labels: from Parquet here or on the Hub to the bytes that a trainer gets, over a data server or not."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import trio
from kits.storage.hub import open_hub_double
from numpy.typing import NDArray
from pyarrow import parquet

from psyche.core.state.state import DataLocation, DataLocationKind
from psyche.data.client import RemoteData
from psyche.data.prepared.rows import MAX_GROUP_NUMBERS, choose_files, open_rows
from psyche.data.provider import DataProvider, open_provider
from psyche.data.server import DataServer
from psyche.errors import DataError, UnusableDataError
from psyche.storage.port import StorageOptions
from psyche.testing.builders import build_identity
from psyche.wire.data import BEGINS

S = 6
SERVER, ALICE = build_identity("server"), build_identity("alice")
ROWS: dict[str, list[list[int]]] = {
    "inputs": [[10 * row + column for column in range(S)] for row in range(7)],
    "labels": [[-100, -100, *(10 * row + column for column in range(2, S))] for row in range(7)],
    "position_ids": [[0, 1, 2, 3, 0, 1]] * 7,
    "sequence_lengths": [[4, 2]] * 7,
}


def write(path: Path, rows: dict[str, Any] = ROWS, *, group: int = 3, kind: Any = None, without: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = kind or pa.large_list(pa.int32())
    table = pa.table({name: pa.array(values, kind) for name, values in rows.items() if name != without})
    parquet.write_table(table, path, row_group_size=group)
    return path


def expect(numbers: list[int], *, positions: list[int] = ROWS["position_ids"][0]) -> bytes:
    places = np.array(positions) + np.array([BEGINS, 0, 0, 0, BEGINS, 0])
    tokens = [
        [[ROWS["inputs"][row][i], ROWS["labels"][row][i] % (1 << 32), places[i]] for i in range(S)] for row in numbers
    ]
    return np.array(tokens, dtype="<u4").tobytes()


def open_location(address: str, folder: Path, *, has_labels: bool = True, **options: Any) -> DataProvider:
    return open_provider(
        DataLocation(DataLocationKind.PREPROCESSED, address), sequence_length=S, vocab_size=99, folder=folder,
        identity=ALICE, storage=StorageOptions(allow_private_hosts=True, **options), has_labels=has_labels,
    )  # fmt: skip


async def test_rows_of_a_folder_come_with_labels_places_and_where_sequences_begin(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "train-00000-of-00001.parquet")
    write(tmp_path / "rows" / "test-00000-of-00001.parquet", {name: rows[:1] for name, rows in ROWS.items()})
    provider = open_location("rows", tmp_path)
    assert await provider.get(0, 8) == expect([0, 1, 2, 3, 4, 5, 6, 0, 1])
    ids = await open_location("rows", tmp_path, has_labels=False).get(2, 3)
    assert ids == np.array(ROWS["inputs"][2:4], dtype="<u4").tobytes()


async def test_positions_follow_from_the_lengths_and_without_both_a_row_is_one_sequence(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x.parquet", without="position_ids")
    assert await open_location("a", tmp_path).get(0, 1) == expect([0, 1])
    write(tmp_path / "b.parquet", {name: ROWS[name] for name in ("inputs", "labels")})
    whole = np.frombuffer(await open_location("b.parquet", tmp_path).get(0, 0), "<u4").reshape(S, 3)
    assert whole[:, 2].tolist() == [BEGINS, 1, 2, 3, 4, 5]


async def test_rows_of_a_data_set_of_the_hub_are_those_of_the_same_files_here(tmp_path: Path) -> None:

    first = write(tmp_path / "first.parquet").read_bytes()
    second = write(tmp_path / "second.parquet", kind=pa.list_(pa.int64())).read_bytes()
    files = {"data/train-1.parquet": first, "data/train-2.parquet": second, "README.md": b"# rows"}
    async with open_hub_double() as hub:
        hub.add("owner/rows", files, kind="dataset")
        provider = open_location("owner/rows", tmp_path, hub_endpoint=hub.address)
        with trio.fail_after(120):
            assert await provider.get(5, 9) == expect([5, 6, 0, 1, 2])
        await provider.aclose()
        missing = open_location("owner/none", tmp_path, hub_endpoint=hub.address)
        with pytest.raises(DataError, match="owner/none"):
            await missing.get(0, 0)
        await missing.aclose()
    with pytest.raises(DataError, match=r"is no folder here, and no data set"):
        open_location("./nowhere.d", tmp_path)


def test_files_of_the_split_are_chosen_and_sorted_by_their_whole_path() -> None:
    names = ["b/train-1.parquet", "a/test-1.parquet", "a/train-1.parquet", "x.md", "train/0.parquet"]
    assert choose_files(names) == ["a/train-1.parquet", "b/train-1.parquet", "train/0.parquet"]
    assert choose_files(["z.parquet", "y/a.parquet"]) == ["y/a.parquet", "z.parquet"]


def change(column: str, row: int, value: list[int]) -> dict[str, Any]:
    return ROWS | {column: [*ROWS[column][:row], value, *ROWS[column][row + 1 :]]}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"inputs": ROWS["inputs"]}, "has no column 'labels'"),
        (change("inputs", 4, [1, 2, 3]), "row 4: inputs has 3 numbers, must have 6"),
        (change("labels", 5, [1] * 7), "row 5: labels has 7 numbers, must have 6"),
        (change("sequence_lengths", 2, [4, 1]), "row 2: sequence_lengths does not add up to 6"),
        (change("sequence_lengths", 2, [7, -1]), "row 2: sequence_lengths has a length below 1"),
        (change("position_ids", 3, [0, 1, 2, 3, 4, 6]), "row 3: position 6 at position 5 is not below 6"),
        (change("labels", 6, [-100, -99, 0, 0, 0, 0]), "row 6: label -99 at position 1 is not below 99"),
        (change("inputs", 1, [0, 99, 0, 0, 0, 0]), "row 1: token 99 at position 1 is not below 99"),
        (change("inputs", 1, None), "column 'inputs' has nulls"),  # type: ignore[arg-type]
        ({name: rows[:0] for name, rows in ROWS.items()}, "no rows"),
    ],
)
def test_rows_that_do_not_fit_are_named(tmp_path: Path, rows: dict[str, Any], text: str) -> None:
    path = write(tmp_path / "x.parquet", rows)
    with pytest.raises((DataError, UnusableDataError), match=text):
        open_rows(path, S, has_labels=True, vocab_size=99).samples(0, 6)


def test_files_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"contains no \.parquet file"):
        open_rows(tmp_path, S, has_labels=True)
    (tmp_path / "x.parquet").write_bytes(b"PAR1, but no more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        open_rows(tmp_path, S, has_labels=True)
    parquet.write_table(pa.table({"inputs": [1, 2], "labels": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="column 'inputs' is int64, must be lists"):
        open_rows(tmp_path, S, has_labels=True).samples(0, 0)
    assert MAX_GROUP_NUMBERS > 1_000 * 8_192, "what other writers make of 1,000 rows"
    monkeypatch.setattr("psyche.data.prepared.rows.MAX_GROUP_NUMBERS", 3 * S - 1)
    write(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="row group 0 has 3 rows with 18 numbers, at most 17"):
        open_rows(tmp_path, S, has_labels=True)


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    read: list[int] = []
    original = parquet.ParquetFile.read_row_group

    def note(self: Any, number: int, **options: Any) -> Any:
        read.append(number)
        return original(self, number, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", note)
    return read


def test_each_group_of_rows_is_read_once_for_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = open_rows(write(tmp_path / "x.parquet"), S, has_labels=True)
    read = count_decoded(monkeypatch)
    whole: list[NDArray[np.uint32]] = [rows.samples(index, index) for index in range(7)]
    assert np.concatenate(whole).tobytes() == expect(list(range(7)))
    assert read == [0, 1, 2]


@pytest.fixture
def source_path(tmp_path: Path) -> Path:
    return write(tmp_path / "x.parquet")


@pytest.mark.parametrize("asks_for_labels", [True, False])
@pytest.mark.parametrize("has_labels", [True, False])
async def test_a_data_server_sends_rows_with_labels_only_to_who_wants_them(
    source_path: Path, has_labels: bool, asks_for_labels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche.data.client.MAX_ROWS_BYTES", 2 * 12 * S)
    monkeypatch.setattr("psyche.data.server.PART_BYTES", 50)
    server = DataServer(open_rows(source_path, S, has_labels=has_labels), SERVER)
    server.set_assignments(3, 5, {ALICE.public: (0, 6)})
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.serve, "127.0.0.1", 0)
        client = RemoteData(
            f"127.0.0.1:{port}", ALICE, sequence_length=S, vocab_size=99, has_labels=asks_for_labels
        )  # fmt: skip
        if has_labels != asks_for_labels:
            with pytest.raises(DataError, match="labels, the run's data_type is"):
                await client.get(0, 4, epoch=3, height=5)
        elif has_labels:
            assert await client.get(0, 4, epoch=3, height=5) == expect([0, 1, 2, 3, 4])
            strict = RemoteData(f"127.0.0.1:{port}", ALICE, sequence_length=S, vocab_size=30, has_labels=True)
            with pytest.raises(UnusableDataError, match="sample 3: token 30 at position 0"):
                await strict.get(2, 3, epoch=3, height=5)
            await strict.aclose()
        await client.aclose()
        nursery.cancel_scope.cancel()
