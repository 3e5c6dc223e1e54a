"""Google's buckets, on fake-gcs-server, and the sign-in of a service account."""

import re
from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from kits.clocks import SteadyClock
from kits.storage.faults import FAULTS, STALLING, FaultyWay, open_way
from kits.storage.servers import CONTENT, OPTIONS, put_objects, serve_buckets
from kits.storage.sign_in import open_sign_in, write_key

from psyche.errors import StorageError, StorageRefused
from psyche.storage import bucket
from psyche.storage.bucket import BucketStorage, open_bucket

OBJECTS = {f"data/{name}": raw for name, raw in CONTENT.items()} | {"database": b"x", "data/folder/": b""}
ODD = {"odd/ü b%20#?&.txt": b"odd"}


@pytest.fixture(scope="module")
def buckets() -> Generator[str]:
    with serve_buckets() as server:
        put_objects(server, "files", OBJECTS | ODD)
        yield server


@pytest.fixture
async def way(buckets: str) -> AsyncGenerator[FaultyWay]:
    async with open_way(buckets) as way:
        yield way


def open_files(way: FaultyWay, prefix: str = "data", **options: Any) -> BucketStorage:
    generations = options.pop("generations", None)
    chosen = replace(OPTIONS, google_endpoint=way.address, **options)
    return open_bucket("files", prefix, chosen, generations=generations)


@pytest.mark.parametrize("prefix", ["data", "/data/"])
async def test_the_objects_below_a_folder_are_listed_and_read(way: FaultyWay, prefix: str) -> None:
    storage = open_files(way, prefix)
    assert storage.address == "gs://files/data"
    files = await storage.list_files()
    assert [(file.name, file.size_bytes) for file in files] == [(name, len(raw)) for name, raw in CONTENT.items()]
    for file in files:
        assert await storage.read(file, 0, file.size_bytes) == CONTENT[file.name]
    await storage.aclose()


async def test_a_whole_bucket_and_odd_names_can_be_read(way: FaultyWay) -> None:
    storage = open_files(way, "")
    assert storage.address == "gs://files"
    files = {file.name: file for file in await storage.list_files()}
    assert set(files) == {name for name in OBJECTS | ODD if not name.endswith("/")}
    (odd,) = ODD
    assert await storage.read(files[odd], 0, 3) == b"odd"
    await storage.aclose()


async def test_a_listing_of_many_pages_is_whole(buckets: str, way: FaultyWay, monkeypatch: pytest.MonkeyPatch) -> None:
    put_objects(buckets, "many", {f"n/{i}": b"%d" % i for i in range(7)})
    real = bucket.urlencode
    monkeypatch.setattr(bucket, "urlencode", lambda query: real({**query, "maxResults": "3"}))
    storage = open_bucket("many", "n", replace(OPTIONS, google_endpoint=way.address))
    assert [file.name for file in await storage.list_files()] == [str(i) for i in range(7)]
    assert len(way.asked) == 3
    await storage.aclose()


async def test_named_generations_are_read_without_a_listing(way: FaultyWay) -> None:
    listed = open_files(way)
    a, *_ = await listed.list_files()
    way.asked.clear()
    storage = open_files(way, generations={"a.bin": a.version, "deep/b.bin": ""})
    files = await storage.list_files()
    assert [file.name for file in files] == ["a.bin", "deep/b.bin"]
    assert files[0] == a
    assert not [one.target for one in way.asked if "prefix=" in one.target]
    gone = open_files(way, generations={"a.bin": "7"})
    with pytest.raises(StorageRefused, match=r"^gs://files/data/a.bin: not there \(HTTP 404\)"):
        await gone.list_files()
    for one in (listed, storage, gone):
        await one.aclose()


async def test_an_object_that_was_replaced_is_not_read(buckets: str, way: FaultyWay) -> None:
    put_objects(buckets, "files", {"changing/x": b"before"})
    storage = open_files(way, "changing")
    (file,) = await storage.list_files()
    put_objects(buckets, "files", {"changing/x": b"after!"})
    with pytest.raises(StorageRefused, match=r"^gs://files/changing/x: not there \(HTTP 404\)"):
        await storage.read(file, 0, 6)
    await storage.aclose()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in STALLING])
async def test_after_a_fault_the_right_bytes_are_read(way: FaultyWay, quick_clock: SteadyClock, fault: str) -> None:
    storage = open_files(way)
    file, *_ = await storage.list_files()
    way.spoil(fault, 2)
    assert await storage.read(file, 100, 90_000) == CONTENT["a.bin"][100:90_000]
    assert way.count == 0
    await storage.aclose()


@pytest.mark.parametrize(
    ("name", "prefix", "reason"),
    [("", "", "is no name of a bucket"), ("a/b", "", "no name of a bucket"), ("files", "a/../b", "a path below")],
)
def test_what_is_no_bucket_or_folder_is_refused(name: str, prefix: str, reason: str) -> None:
    with pytest.raises(StorageRefused, match=reason):
        open_bucket(name, prefix, OPTIONS)


async def test_a_service_account_signs_in_once_an_hour(
    way: FaultyWay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(bucket.time, "time", lambda: now)
    async with open_sign_in() as sign_in:
        path = write_key(tmp_path / "key.json", token_uri=sign_in.address)
        storage = open_files(way, google_credentials=path)
        file, *_ = await storage.list_files()
        await storage.read(file, 0, 5)
        now += 3_400.0
        await storage.read(file, 0, 5)
        await storage.aclose()
        assert [one.headers["authorization"] for one in way.asked] == ["Bearer token-1"] * 2 + ["Bearer token-2"]
        assert sign_in.claims[0] == {
            "iss": "me@project.example", "scope": "https://www.googleapis.com/auth/devstorage.read_only",
            "aud": sign_in.address, "iat": 1_800_000_000, "exp": 1_800_003_600,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"type": "authorized_user"}, "must be the key of a service account, is of type 'authorized_user'"),
        ({"private_key": "-----BEGIN secret"}, "its private_key must be an RSA key in PEM"),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, "its private_key must be an RSA key in PEM"),
        ({"client_email": None}, "must be the JSON key of a service account"),
        ({"token_uri": "ftp://127.0.0.1/"}, "must be an https address"),
    ],
    ids=["another type", "no PEM", "no RSA", "no name", "no https"],
)
async def test_what_is_no_key_is_named_and_not_shown(
    way: FaultyWay, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = write_key(tmp_path / "key.json", **changes)
    storage = open_files(way, google_credentials=path)
    with pytest.raises(StorageError, match=re.escape(reason)) as caught:
        await storage.list_files()
    assert str(path) in str(caught.value)
    assert "BEGIN" not in str(caught.value)
    await storage.aclose()


async def test_a_key_that_is_missing_is_named(way: FaultyWay, tmp_path: Path) -> None:
    storage = open_files(way, google_credentials=tmp_path / "none.json")
    with pytest.raises(StorageRefused, match=r"none\.json: No such file"):
        await storage.list_files()
    await storage.aclose()
