"""Rows of files over HTTP: the same as those of the same files on this machine, whatever the order."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kits.storage.servers import OPTIONS, serve_folder

from psyche.core.state.state import DataLocation, DataLocationKind, HttpLocation, HttpLocationKind, TokenSize
from psyche.data.local import TokenRows
from psyche.data.provider import DataProvider, open_provider
from psyche.errors import DataError, UnusableDataError
from psyche.storage.port import StorageOptions, StoredFile
from psyche.storage.urls import UrlStorage
from psyche.testing.builders import build_identity

LENGTH = 8
ONE, MANY = HttpLocationKind.SINGLE_URL, HttpLocationKind.NUMBERED_FILES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    for number, tokens in ((9, 100), (10, 7), (11, 61)):
        ids = np.arange(number * 1_000, number * 1_000 + tokens, dtype="<u2")
        (folder / f"tokens-{number:02}.bin").write_bytes(ids.tobytes())
    np.save(folder / "one.npy", np.arange(90, dtype="<u4"))
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Generator[str]:
    with serve_folder(folder) as address:
        yield address


def open_http(
    address: str,
    http: HttpLocation,
    *,
    seed: bytes | None = None,
    vocab_size: int = 20_000,
    size: TokenSize = TokenSize.TWO_BYTES,
    storage: StorageOptions = OPTIONS,
) -> DataProvider:
    http.url = f"{address}/{http.url}"
    return open_provider(
        DataLocation(DataLocationKind.HTTP, http=http, token_size=size, shuffle_seed=seed),
        sequence_length=LENGTH,
        vocab_size=vocab_size,
        folder=Path(),
        identity=build_identity("own"),
        storage=storage,
    )


@pytest.mark.parametrize("seed", [None, bytes(range(32))], ids=["in order", "shuffled"])
async def test_rows_of_numbered_files_are_those_of_the_same_files_here(
    folder: Path, address: str, seed: bytes | None
) -> None:
    many = HttpLocation(MANY, "tokens-{}.bin", start_index=9, n_left_pad_zeros=2, num_files=3)
    provider = open_http(address, many, seed=seed)
    local = TokenRows(sorted(folder.glob("*.bin")), 2, LENGTH, seed)
    assert local.num_sequences == 12 + 0 + 7
    for start, end in ((0, 0), (3, 18), (11, 12), (17, 40)):
        assert await provider.get(start, end) == local.samples(start, end).astype("<u4").tobytes()
    await provider.aclose()


async def test_a_numpy_file_is_read_behind_its_header(folder: Path, address: str) -> None:
    provider = open_http(address, HttpLocation(ONE, "one.npy"), size=TokenSize.FOUR_BYTES)
    assert await provider.get(2, 5) == TokenRows([folder / "one.npy"], 4, LENGTH).samples(2, 5).tobytes()
    await provider.aclose()


@pytest.mark.parametrize(
    ("kind", "name", "files", "text"),
    [
        (ONE, "none.bin", 0, "none.bin"),
        (ONE, "tokens-10.bin", 0, "no file holds 8 tokens"),
        (MANY, "tokens.bin", 2, "exactly one {}"),
        (MANY, "{}.bin", 1 << 20, "at most"),
    ],
    ids=["no file", "no row", "no number", "too many"],
)
async def test_a_location_without_rows_is_refused_with_the_reason(
    address: str, kind: HttpLocationKind, name: str, files: int, text: str
) -> None:
    with pytest.raises(DataError, match=text):
        await open_http(address, HttpLocation(kind, name, num_files=files)).get(0, 0)


async def test_a_token_that_the_model_does_not_have_is_named_with_its_place(address: str) -> None:
    provider = open_http(address, HttpLocation(ONE, "tokens-11.bin"), vocab_size=11_020)
    await provider.get(0, 1)
    with pytest.raises(UnusableDataError, match=r"tokens-11.bin: token 11020 at position 20"):
        await provider.get(0, 3)
    await provider.aclose()


@pytest.fixture
def open_cached(address: str, tmp_path: Path) -> Iterator[Callable[..., tuple[DataProvider, list[int]]]]:
    """Opens the rows of `tokens-09.bin` through a cache; says how many bytes each request to the server asked for."""
    asked: list[int] = []

    def open_(gigabytes: float, *, seed: bytes | None = None) -> tuple[DataProvider, list[int]]:
        options = replace(OPTIONS, cache_dir=tmp_path / "cache", cache_gb=gigabytes)
        provider = open_http(address, HttpLocation(ONE, "tokens-09.bin"), seed=seed, storage=options)
        return provider, asked

    read = UrlStorage.read

    async def count(self: UrlStorage, file: StoredFile, start: int, end: int) -> bytes:
        asked.append(end - start)
        return await read(self, file, start, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UrlStorage, "read", count)
        yield open_


@pytest.mark.parametrize("seed", [None, bytes(range(32))], ids=["in order", "shuffled"])
async def test_another_client_of_this_machine_reads_what_one_has_read_from_disk(
    open_cached: Callable[..., tuple[DataProvider, list[int]]], seed: bytes | None
) -> None:
    rows: list[list[bytes]] = []
    for gigabytes in (0.01, 0.01, 0):
        provider, asked = open_cached(gigabytes, seed=seed)
        rows.append([await provider.get(index, index) for index in (3, 0, 7)])
        await provider.aclose()
        if gigabytes:
            assert asked == [200], "the file, which is smaller than a chunk, once"
    assert rows[0] == rows[1] == rows[2]


async def test_shuffled_rows_of_more_than_the_cache_holds_are_not_fetched_as_chunks(
    open_cached: Callable[..., tuple[DataProvider, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche.storage.cache.CHUNK_BYTES", 64)
    shuffled, asked = open_cached(150e-9, seed=bytes(range(32)))
    await shuffled.get(3, 3)
    assert asked == [2 * LENGTH]
    in_order, _ = open_cached(150e-9)
    await in_order.get(3, 3)
    assert asked[1:] == [64]
