"""The data that a manifest on record stands for: no other rows, whatever a server lists or gives (D1, B22, F22)."""

import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
import trio
from kits.storage.faults import FaultyWay, open_way
from kits.storage.hub import open_hub_double
from kits.storage.servers import OPTIONS, put_objects, serve_buckets, serve_folder
from pyarrow import parquet
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.cli.helpers.manifests import make_manifest
from psyche.config.load import load_run
from psyche.config.problems import ConfigProblems
from psyche.core.encoding.data_manifest import DataManifest, FindManifest, decode_data_manifest
from psyche.core.state.state import ZERO32, DataLocation, DataLocationKind, HttpLocation, HttpLocationKind
from psyche.data.files import open_token_file
from psyche.data.local import TokenRows, find_difference, make_folder_manifest
from psyche.data.provider import open_provider
from psyche.data.stored import StoredRows, open_http_rows, open_location
from psyche.errors import DataError
from psyche.storage.port import StorageOptions, gather
from psyche.testing.builders import build_identity
from psyche.wire.crypto import blob_id_of

LENGTH = 1_000
SEED = bytes(range(32))
TOKENS = {f"t-{number}.bin": Random(number).randbytes(2 * tokens) for number, tokens in ((9, 700_500), (10, 3_000))}
MANY = HttpLocation(HttpLocationKind.NUMBERED_FILES, "", start_index=9, num_files=2)
CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokens").mkdir()
    for name, raw in TOKENS.items():
        (tmp_path / "tokens" / name).write_bytes(raw)
    return tmp_path / "tokens"


@pytest.fixture
async def way(folder: Path) -> AsyncGenerator[FaultyWay]:
    with serve_folder(folder) as address:
        async with open_way(address) as way:
            MANY.url = f"{way.address}/t-{{}}.bin"
            yield way


async def make(*, is_hashed: bool) -> bytes:
    return await make_manifest(*open_location(MANY, OPTIONS), 2, is_hashed=is_hashed, progress=lambda _done, _all: None)


def open_rows(
    root: bytes = ZERO32, found: bytes | None = None, http: HttpLocation = MANY, options: StorageOptions = OPTIONS
) -> StoredRows:
    location = DataLocation(DataLocationKind.HTTP, http=http, shuffle_seed=SEED)
    return open_http_rows(
        location, options, sequence_length=LENGTH, vocab_size=None, root=root, find_manifest=give(found)
    )


def give(raw: bytes | None) -> FindManifest:
    async def find(root: bytes) -> DataManifest | None:
        assert raw is None or blob_id_of(raw) == root
        return None if raw is None else decode_data_manifest(raw)

    return find


def get_right(folder: Path, start: int, end: int) -> bytes:
    rows = TokenRows([folder / "t-9.bin", folder / "t-10.bin"], 2, LENGTH, SEED)
    return rows.samples(start, end).tobytes()


@pytest.mark.parametrize("is_hashed", [True, False], ids=["hashes", "no hashes"])
async def test_rows_of_a_manifest_are_those_of_the_files_and_nothing_is_listed(
    way: FaultyWay, folder: Path, is_hashed: bool
) -> None:
    raw = await make(is_hashed=is_hashed)
    way.asked.clear()
    rows = open_rows(blob_id_of(raw), raw)
    for start, end in ((0, 9), (695, 712), (3, 3)):
        assert await rows.get(start, end) == get_right(folder, start, end)
    await rows.aclose()
    assert {one.method for one in way.asked} == {"GET"}


async def test_another_member_and_a_restart_get_the_same_rows_when_the_bucket_has_more_files(folder: Path) -> None:
    with serve_buckets() as server:
        options = replace(OPTIONS, google_endpoint=server)
        put_objects(server, "bucket-of-rows", {f"train/{name}": raw for name, raw in TOKENS.items()})
        http = HttpLocation(HttpLocationKind.GCP, "bucket-of-rows", "train")
        location = DataLocation(DataLocationKind.HTTP, http=http, shuffle_seed=SEED)
        raw = await make_manifest(*open_location(http, options), 2, is_hashed=True, progress=lambda _done, _all: None)
        given: list[bytes] = []
        for root, found in ((blob_id_of(raw), raw), (blob_id_of(raw), raw), (ZERO32, None)):
            put_objects(server, "bucket-of-rows", {f"train/a-{len(given)}.bin": Random(8).randbytes(8_000)})
            rows = open_http_rows(
                location, options, sequence_length=LENGTH, vocab_size=None, root=root, find_manifest=give(found)
            )
            given.append(await rows.get(0, 50))
            await rows.aclose()
    assert given[0] == given[1]
    assert given[2] != given[0], "by a listing, they would have changed"


async def test_a_bucket_is_listed_once_for_a_run_of_sixteen_clients() -> None:
    """By whoever makes the manifest; each client asks for the ranges of its rows alone."""
    with serve_buckets() as server:
        put_objects(server, "bucket-of-rows", {f"train/{name}": raw for name, raw in TOKENS.items()})
        async with open_way(server) as way:
            options = replace(OPTIONS, google_endpoint=way.address)
            http = HttpLocation(HttpLocationKind.GCP, "bucket-of-rows", "train")
            raw = await make_manifest(
                *open_location(http, options), 2, is_hashed=False, progress=lambda _done, _all: None
            )
            clients = [open_rows(blob_id_of(raw), raw, http, options) for _ in range(16)]
            given = await gather([partial(rows.get, 0, 9) for rows in clients])
            for rows in clients:
                await rows.aclose()
    listings = [one for one in way.asked if "range" not in one.headers]
    assert len(listings) == 1
    assert len(way.asked) <= 1 + 16 * 10, "at most a range for each row"
    assert len(set(given)) == 1


async def test_bytes_that_were_wrong_once_are_asked_for_again(way: FaultyWay, folder: Path) -> None:
    raw = await make(is_hashed=True)
    rows = open_rows(blob_id_of(raw), raw)
    way.spoil("other_bytes", 1)
    assert await rows.get(0, 9) == get_right(folder, 0, 9)
    await rows.aclose()


async def test_wrong_bytes_that_a_cache_has_kept_before_there_was_a_manifest_are_not_trained_on(
    way: FaultyWay, folder: Path, tmp_path: Path
) -> None:
    options = replace(OPTIONS, cache_dir=tmp_path / "cache", cache_gb=1)
    raw = await make(is_hashed=True)
    way.spoil("other_bytes")
    rows = open_rows(options=options)
    assert await rows.get(0, 9) != get_right(folder, 0, 9)
    await rows.aclose()
    way.spoil("")
    rows = open_rows(blob_id_of(raw), raw, options=options)
    assert await rows.get(0, 9) == get_right(folder, 0, 9)
    await rows.aclose()


async def test_b22_a_server_with_other_bytes_is_named_with_both_hashes_and_none_is_trained_on(
    way: FaultyWay, folder: Path
) -> None:
    raw = await make(is_hashed=True)
    right = [file.hashes for file in decode_data_manifest(raw).files]
    rows = open_rows(blob_id_of(raw), raw)
    way.spoil("other_bytes")
    with pytest.raises(
        DataError, match=r"t-\d+.bin: gives other bytes.*BLAKE3 of MiB \d is [0-9a-f]{64}, not "
    ) as told:
        await rows.get(0, 9)
    assert any(hashes[:32].hex() in str(told.value) or hashes[32:].hex() in str(told.value) for hashes in right)
    way.spoil("")
    assert await rows.get(0, 9) == get_right(folder, 0, 9)
    await rows.aclose()


async def test_without_the_manifest_the_listing_counts_only_if_it_is_that_on_record(
    way: FaultyWay, folder: Path
) -> None:
    plain, hashed = await make(is_hashed=False), await make(is_hashed=True)
    rows = open_rows(blob_id_of(plain))
    assert await rows.get(0, 9) == get_right(folder, 0, 9)
    await rows.aclose()
    (folder / "t-10.bin").write_bytes(TOKENS["t-10.bin"] + bytes(4))
    for raw in (plain, hashed):
        rows = open_rows(blob_id_of(raw))
        with pytest.raises(DataError, match="not those that the record's data_root stands for"):
            await rows.get(0, 9)
        await rows.aclose()


@pytest.mark.whole
async def test_a_file_of_another_version_than_the_manifest_s_is_not_read(way: FaultyWay, folder: Path) -> None:
    raw = await make(is_hashed=False)
    (folder / "t-9.bin").write_bytes(bytes(len(TOKENS["t-9.bin"])))
    rows = open_rows(blob_id_of(raw), raw)
    with pytest.raises(DataError, match="another version"):
        await rows.get(0, 99)
    await rows.aclose()


async def test_a_manifest_of_other_files_than_the_location_s_is_refused(way: FaultyWay) -> None:
    raw = await make(is_hashed=False)
    rows = open_rows(blob_id_of(raw), raw, HttpLocation(HttpLocationKind.SINGLE_URL, f"{way.address}/t-9.bin"))
    with pytest.raises(DataError, match="of other files: 2 with ids of 2 bytes"):
        await rows.get(0, 0)
    await rows.aclose()


@pytest.mark.parametrize("is_hashed", [True, False], ids=["hashes", "no hashes"])
def test_a_folder_is_compared_with_the_root_on_record(folder: Path, is_hashed: bool) -> None:
    files = [open_token_file(path, 2) for path in sorted(folder.iterdir())]
    raw = make_folder_manifest(files, is_hashed=is_hashed)
    root, beside = blob_id_of(raw), folder.parent / "data.manifest"
    beside.write_bytes(raw)
    assert find_difference(files, root) == find_difference(files, root, beside) == find_difference(files, ZERO32) == ""
    changed = bytearray(TOKENS["t-9.bin"])
    changed[-1] ^= 1
    (folder / "t-9.bin").write_bytes(changed)
    assert bool(find_difference(files, root)) == is_hashed
    assert ("t-9.bin has other bytes in its MiB 1;" in find_difference(files, root, beside)) == is_hashed
    assert "not those of the run" in find_difference(files[:1], root)
    (folder / "t-9.bin").write_bytes(TOKENS["t-9.bin"])
    assert "t-9.bin is missing;" in find_difference(files[:1], root, beside)
    (folder / "x.bin").write_bytes(bytes(8))
    assert "x.bin is none of them;" in find_difference([*files, open_token_file(folder / "x.bin", 2)], root, beside)
    wider = [open_token_file(file.path, 4) for file in files]
    assert "t-10.bin has ids of 4 bytes from byte 0 on;" in find_difference(wider, root, beside)
    (folder / "t-9.bin").write_bytes(bytes(18))
    shorter = [files[0], open_token_file(folder / "t-9.bin", 2)]
    assert "t-9.bin has 18 bytes, not 1401000;" in find_difference(shorter, root, beside)


async def test_a_folder_with_the_bytes_of_files_elsewhere_is_taken_for_them_whatever_their_versions(
    way: FaultyWay, folder: Path
) -> None:
    raw = await make(is_hashed=True)
    (folder.parent / "data.manifest").write_bytes(raw)
    files = [open_token_file(path, 2) for path in sorted(folder.iterdir())]
    assert find_difference(files, blob_id_of(raw), folder.parent / "data.manifest") == ""
    assert "only its manifest says" in find_difference(files, blob_id_of(raw))


@pytest.mark.parametrize("words", [[], ["--hash"]], ids=["no hashes", "hashes"])
async def test_rows_of_a_data_set_are_held_to_the_manifest_that_the_command_makes(
    tmp_path: Path, words: list[str]
) -> None:
    parquet.write_table(pa.table({"inputs": pa.array([[7] * 4] * 3)}), tmp_path / "rows.parquet")
    raw_rows = (tmp_path / "rows.parquet").read_bytes()
    text = (CONFIG / "demo" / "run.toml").read_text()
    location = '[model.LLM.data_location]\nPreprocessed = "owner/rows"\n'
    (tmp_path / "run.toml").write_text(re.sub(r"\[model.LLM.data_location\]\n[^\n]*\n", location, text))
    async with open_hub_double() as hub:
        files = {f"data/{name}.parquet": raw_rows for name in ("train-0", "test-0")}
        tree = hub.add("owner/rows", files, kind="dataset").commits
        command = [sys.executable, "-m", "psyche", "data", "manifest", str(tmp_path), *words, "--allow-private-hosts"]
        await trio.run_process(command, env=os.environ | {"HF_ENDPOINT": hub.address})
        raw, root = (tmp_path / "data.manifest").read_bytes(), load_run(tmp_path).config.data_root
        assert [file.name for file in decode_data_manifest(raw).files] == ["data/train-0.parquet"]
        read = partial(read_rows, replace(OPTIONS, hub_endpoint=hub.address), tmp_path, root)
        assert await read(raw) == [7] * 8
        if words:
            (blob,) = [blob for tree in tree.values() for name, blob in tree.items() if "train" in name]
            right, _ = blob.raw, (blob.oid, blob.sha256)  # the Hub goes on saying that it is this object
            blob.raw = right[:6] + bytes([right[6] ^ 1]) + right[7:]
            with pytest.raises(DataError, match=r"data/train-0.parquet: gives other bytes.*BLAKE3 of MiB 0"):
                await read(raw)
            blob.raw = right
        hub.add("owner/rows", files | {"data/train-1.parquet": raw_rows}, kind="dataset")
        assert await read(raw) == [7] * 8
        with pytest.raises(DataError, match="not those that the record's data_root stands for"):
            await read(None)


async def read_rows(options: StorageOptions, folder: Path, root: bytes, raw: bytes | None) -> list[int]:
    provider = open_provider(
        DataLocation(DataLocationKind.PREPROCESSED, "owner/rows"), sequence_length=4, vocab_size=9, folder=folder,
        identity=build_identity("alice"), storage=options, root=root, find_manifest=give(raw),
    )  # fmt: skip
    async with aclosing(provider):
        return np.frombuffer(await provider.get(0, 1), "<u4").tolist()


def test_the_command_writes_the_manifest_beside_the_run_which_gets_its_id(folder: Path) -> None:
    run = folder / "run.toml"
    text = (CONFIG / "demo" / "run.toml").read_text()
    run.write_text(text)
    (folder / "data.toml").write_text('dir = "."\nseq_len = 128\ntoken_size = "TwoBytes"\n')
    assert load_run(run).config.data_root == ZERO32
    told = CliRunner().invoke(app, ["data", "manifest", str(run), "--hash"])
    assert told.exit_code == 0, told.output
    raw = (folder / "data.manifest").read_bytes()
    assert load_run(run).config.data_root == blob_id_of(raw)
    assert f"2 files, 703500 tokens, data_root {blob_id_of(raw).hex()}" in told.output
    assert decode_data_manifest(raw).is_hashed
    (folder / "data.manifest").write_bytes(raw[:-1])
    with pytest.raises(ConfigProblems, match=r"data.manifest.*bytes are left"):
        load_run(run)
    (folder / "data.manifest").write_bytes(raw)
    run.write_text(text.replace("[config]", f'[config]\ndata_root = "{"ab" * 32}"'))
    with pytest.raises(ConfigProblems, match=r"data_root.*is abab.*, but .*data.manifest has the id"):
        load_run(run)


def test_a_manifest_elsewhere_is_named_and_none_leaves_out_that_beside_the_file(folder: Path, tmp_path: Path) -> None:
    plain, hashed = (
        make_folder_manifest([open_token_file(folder / "t-9.bin", 2)], is_hashed=is_hashed)
        for is_hashed in (False, True)
    )
    (folder / "run.toml").write_text((CONFIG / "demo" / "run.toml").read_text())
    (folder / "data.manifest").write_bytes(plain)
    other = tmp_path / "other"
    other.write_bytes(hashed)
    found = load_run(folder, str(other))
    assert (found.config.data_root, found.data_manifest) == (blob_id_of(hashed), other)
    found = load_run(folder, "none")
    assert (found.config.data_root, found.data_manifest) == (ZERO32, None)
    assert load_run(folder).config.data_root == blob_id_of(plain)
    told = CliRunner().invoke(app, ["server", "validate-config", "--state", str(folder), "--data-manifest", "absent"])
    assert told.exit_code == 1
    assert "absent: cannot be read: No such file" in told.output
