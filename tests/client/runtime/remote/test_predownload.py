"""What was fetched before a client takes part is not asked for again; what cannot be kept is said."""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kits.models import write_model_folder
from kits.storage.hub import HubDouble, open_hub_double
from kits.storage.servers import OPTIONS, serve_folder, write_files
from runtime_kit import Place

from psyche.cli.helpers.manifests import make_manifest
from psyche.client.runtime.predownload import fetch_data, fetch_model
from psyche.client.runtime.settings import ClientSettings
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    DataLocation,
    DataLocationKind,
    HttpLocation,
    HttpLocationKind,
    Mark,
    TokenSize,
)  # fmt: skip
from psyche.data.stored import open_http_rows, open_location
from psyche.data.weighted import WeightedRows
from psyche.errors import ConfigError, DataError, PsycheError
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles
from psyche.storage.port import StoredFile
from psyche.storage.urls import UrlStorage
from psyche.wire.crypto import blob_id_of

SIZE = 3_000_000


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncGenerator[HubDouble]:
    model = write_model_folder(tmp_path / "model")
    async with open_hub_double() as hub:
        hub.add("owner/name", {file.name: file.read_bytes() for file in model.iterdir()})
        yield hub


@pytest.fixture
def address(tmp_path: Path) -> Generator[str]:
    write_files(tmp_path / "served", {"tokens.bin": bytes(SIZE)})
    with serve_folder(tmp_path / "served") as address:
        yield address


@pytest.fixture
def place(hub: HubDouble, address: str, tmp_path: Path) -> Place:
    options = replace(OPTIONS, hub_endpoint=hub.address, cache_dir=tmp_path / "cache", cache_gb=0.01)
    place = Place(tmp_path / "client", storage=options)
    place.state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "owner/name")
    place.state.model.data_location = DataLocation(
        DataLocationKind.HTTP,
        http=HttpLocation(HttpLocationKind.SINGLE_URL, f"{address}/tokens.bin"),
        token_size=TokenSize.TWO_BYTES,
        shuffle_seed=bytes(32),
    )
    return place


def build_settings(place: Place) -> ClientSettings:
    return ClientSettings(run_id="run", data_dir=place.snapshots.parent, storage=place.storage)


@pytest.mark.parametrize("is_known", [True, False], ids=["on record", "not on record"])
async def test_a_model_is_fetched_once_and_then_is_the_client_s_own(
    place: Place, hub: HubDouble, tmp_path: Path, is_known: bool
) -> None:
    digest = compute_first_digest(FolderFiles(tmp_path / "model"), is_exact=True)
    place.state.certified = place.state.checkpoint = Mark(digest=digest if is_known else ZERO32)
    settings, said, shown = build_settings(place), list[str](), list[tuple[int, int]]()
    await fetch_model(place.state, settings, said.append, lambda done, total: shown.append((done, total)))
    assert said[0].startswith("model: fetched from owner/name to ")
    assert shown[-1][0] == shown[-1][1]
    hub.asked.clear()
    loader = Place(tmp_path / "client", storage=place.storage).loader
    loader._snapshots = settings.snapshots_dir
    found = await loader.find_local(digest)
    assert found is not None
    if is_known:
        await fetch_model(place.state, settings, said.append, lambda *_: None)
        assert said[1] == "model: its weights are here already"
    assert not hub.asked


async def test_data_are_judged_by_the_manifest_that_is_named(place: Place, tmp_path: Path) -> None:
    storage, names = open_location(place.state.model.data_location.http, place.storage)
    raw = await make_manifest(storage, names, 2, is_hashed=True, progress=lambda *_: None)
    manifest = tmp_path / "named"
    manifest.write_bytes(raw)
    settings = build_settings(place)
    settings.data_manifest = str(manifest)
    place.state.config.data_root = blob_id_of(raw)
    await fetch_data(place.state, settings, lambda _: None, lambda *_: None)
    place.state.config.data_root = bytes(31) + b"x"
    with pytest.raises(DataError, match="named: is no manifest of the data on record"):
        await fetch_data(place.state, settings, lambda _: None, lambda *_: None)


async def test_data_are_fetched_once_and_then_no_byte_of_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, said, shown = build_settings(place), list[str](), list[tuple[int, int]]()
    await fetch_data(place.state, settings, said.append, lambda done, total: shown.append((done, total)))
    assert said == [f"data: all 3.0 MB are in {place.storage.cache_dir}"]
    assert shown[-1] == (SIZE, SIZE)
    monkeypatch.setattr("psyche.storage.urls.UrlStorage.read", lambda *_: pytest.fail("asked for bytes"))
    location = place.state.model.data_location
    rows = open_http_rows(location, place.storage, sequence_length=100, vocab_size=None)
    assert await rows.get(0, 9) == bytes(4 * 100 * 10)
    await fetch_data(place.state, settings, said.append, lambda *_: None)
    await rows.aclose()


async def test_all_sources_of_a_mix_are_fetched_if_the_cache_has_room_for_all_of_them(
    place: Place, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"{name}.bin": bytes([at]) * SIZE for at, name in enumerate("ab")}
    source = {"token_size_in_bytes": "TwoBytes", "shuffle": "DontShuffle"}
    sources = [{**source, "location": {"SingleUrl": f"{address}/{name}"}} for name in files]
    mix = {"shuffle": "DontShuffle", "providers": sources}
    write_files(tmp_path / "served", {**files, "mix.json": json.dumps(mix).encode()})
    location = DataLocation(DataLocationKind.WEIGHTED_HTTP, f"{address}/mix.json")
    place.state.model.data_location = location
    settings, said, shown = build_settings(place), list[str](), list[tuple[int, int]]()
    settings.storage = replace(place.storage, cache_gb=0.005)
    with pytest.raises(DataError, match=r"has 3.0 MB of 6.0 MB in all, of which the cache keeps 5.0 MB"):
        await fetch_data(place.state, settings, said.append, lambda *_: None)
    settings.storage = place.storage
    await fetch_data(place.state, settings, said.append, lambda done, total: shown.append((done, total)))
    assert said == [f"data: all 6.0 MB are in {place.storage.cache_dir}"]
    assert shown[-1] == (2 * SIZE, 2 * SIZE)
    read = UrlStorage.read

    async def read_the_mix_alone(self: UrlStorage, file: StoredFile, start: int, end: int) -> bytes:
        assert file.name == "mix.json", "asked for bytes of a source"
        return await read(self, file, start, end)

    monkeypatch.setattr(UrlStorage, "read", read_the_mix_alone)
    async with aclosing(WeightedRows(location.address, place.storage, sequence_length=100, vocab_size=None)) as rows:
        taken = np.frombuffer(await rows.get(0, 9), "<u4").reshape(10, 100)
    assert sorted(set(taken[:, 0].tolist())) == [0, 0x0101]


async def test_what_cannot_be_fetched_is_said_with_what_to_do(place: Place, hub: HubDouble) -> None:
    settings, said = build_settings(place), list[str]()
    settings.storage = replace(place.storage, cache_gb=0.001)
    with pytest.raises(DataError, match=r"has 3.0 MB, of which the cache keeps 1.0 MB: set --cache-gb to 1 or more"):
        await fetch_data(place.state, settings, said.append, lambda *_: None)
    hub.add("owner/name", {})
    with pytest.raises(PsycheError, match="hf://owner/name"):
        await fetch_model(place.state, settings, said.append, lambda *_: None)
    place.state.model.checkpoint = Checkpoint(CheckpointKind.LOCAL, "model")
    place.state.model.data_location = DataLocation(DataLocationKind.LOCAL, "data")
    await fetch_model(place.state, settings, said.append, lambda *_: None)
    await fetch_data(place.state, settings, said.append, lambda *_: None)
    place.state.model.data_location = DataLocation(DataLocationKind.PREPROCESSED, "owner/rows")
    await fetch_data(place.state, settings, said.append, lambda *_: None)
    parts = [" lies in a folder", " are Local", " are Preprocessed"]
    assert [text.split(",")[0].split(":")[1] for text in said] == parts
    assert "a client reads as it needs them" in said[-1]


async def test_a_client_that_is_running_is_left_alone(place: Place) -> None:
    from psyche.client.runtime.app import lock_data_dir

    settings = build_settings(place)
    lock_data_dir(settings.data_dir)
    with pytest.raises(ConfigError, match="another client is using it"):
        await fetch_model(place.state, settings, lambda _: None, lambda *_: None)
