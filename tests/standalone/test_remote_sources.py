"""`psyche train` with models and data elsewhere: the same training as with the same files here."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from kits.storage.places import LENGTH, Places, open_places
from kits.tier import few
from pyarrow import parquet

from psyche.errors import ConfigError, PsycheError
from psyche.standalone.settings import TrainSettings
from psyche.standalone.train import TrainResult, train_model
from psyche.storage.port import read_environment


@pytest.fixture
async def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Places]:
    async with open_places(tmp_path, monkeypatch) as places:
        yield places


async def train(model: object, data: object, tmp_path: Path, **changes: Any) -> TrainResult:
    storage = replace(read_environment(), allow_private_hosts=True, cache_dir=tmp_path / "kept", cache_gb=0.1)
    settings = TrainSettings(
        model=str(model), data=(str(data),), sequence_length=LENGTH, total_batch=4, steps=3, chunk=8, topk=8,
        device="cpu", threads=1, storage=storage, eval_tokens=8 * LENGTH, **changes,
    )  # fmt: skip
    return await trio.to_thread.run_sync(train_model, settings)


@pytest.mark.parametrize("kind", few(["mix", "one file", "numbered files", "bucket"]))
async def test_data_elsewhere_trains_as_the_same_files_here(places: Places, tmp_path: Path, kind: str) -> None:
    here = await train(places.model, places.tokens, tmp_path)
    there = await train(places.model, places.names[kind], tmp_path)
    assert (there.losses, there.held_out) == (here.losses, here.held_out)


@pytest.mark.parametrize("named", few(["owner/name@main", "owner/name", "hf://owner/name", "gs://bucket/m"]))
async def test_a_model_elsewhere_is_that_of_the_same_folder_and_is_fetched_once(
    places: Places, tmp_path: Path, named: str
) -> None:
    here = await train(places.model, places.tokens, tmp_path)
    assert (await train(named, places.tokens, tmp_path)).losses == here.losses
    before = places.hub.served_bytes
    await train(named, places.tokens, tmp_path)
    assert places.hub.served_bytes - before < (places.model / "model.safetensors").stat().st_size / 2


async def test_prepared_rows_train_by_their_labels_here_as_on_the_hub(places: Places, tmp_path: Path) -> None:
    there = await train(places.model, places.names["prepared rows"], tmp_path)
    assert (await train(places.model, tmp_path / "x.parquet", tmp_path)).losses == there.losses
    (tmp_path / "short").mkdir()
    parquet.write_table(pa.table({"inputs": [[1] * 8]}), tmp_path / "short" / "train.parquet")
    with pytest.raises(ConfigError, match=r"--sequence-length: is 16, the rows of .* have 8 tokens"):
        await train(places.model, tmp_path / "short", tmp_path)


@pytest.mark.parametrize(
    ("model", "data", "words"),
    [
        ("owner/absent", "", "owner/absent"),
        ("https://example.org/m", "", "is no address of a model; name owner/name"),
        ("", "ftp://example.org/x.bin", "no data are read from there; name https://"),
        ("", "https://example.org/{9..1}.bin", "must count up in one place"),
        ("", "{web}/absent.bin", "absent.bin"),
        ("", "hf://datasets/owner/absent", "owner/absent"),
    ],
)
async def test_what_cannot_be_read_is_said_by_its_address(
    places: Places, tmp_path: Path, model: str, data: str, words: str
) -> None:
    named = data.replace("{web}", places.web) or places.tokens
    with pytest.raises(PsycheError, match=words):
        await train(model or places.model, named, tmp_path)
