"""`psyche init` with models and data at addresses: a run that loads, with what their places say of them."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio
from kits.commands import refuse
from kits.storage.places import LENGTH, Places, open_places
from kits.tier import few

from psyche.config.load import load_run
from psyche.core.state.enums import CheckpointKind, DataLocationKind, DataType, HttpLocationKind, TokenSize
from psyche.core.state.settings import Checkpoint

pytestmark = pytest.mark.usefixtures("trainer_host")


@pytest.fixture
async def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Places]:
    monkeypatch.chdir(tmp_path)
    async with open_places(tmp_path, monkeypatch) as places:
        yield places


KINDS = {"one file": HttpLocationKind.SINGLE_URL, "numbered files": HttpLocationKind.NUMBERED_FILES,
         "bucket": HttpLocationKind.GCP}  # fmt: skip


@pytest.mark.parametrize("backend", [(), ("--rpc", "localhost")], ids=["server", "chain"])
@pytest.mark.parametrize("kind", few(list(KINDS)))
async def test_a_run_on_a_model_of_the_hub_and_token_files_elsewhere_loads(
    places: Places, kind: str, backend: tuple[str, ...]
) -> None:
    said = await places.call("init", "r", "--model", "owner/name", "--data", places.names[kind], "--yes", *backend)
    run = load_run(Path("r"))
    commit = places.hub.repos["models/owner/name"].refs["main"]
    assert run.model.checkpoint == Checkpoint(CheckpointKind.HUB, "owner/name", commit)
    location = run.model.data_location
    assert (location.kind, location.http.kind, location.token_size) == (
        DataLocationKind.HTTP, KINDS[kind], TokenSize.TWO_BYTES,
    )  # fmt: skip
    assert location.shuffle_seed is not None
    assert (run.metadata.vocab_size, run.model.max_seq_len) == (256, 32)
    assert [path.name for path in Path("r").iterdir()] == ["run.toml"]
    assert f"hf://owner/name@{commit}: " in said
    assert ": 48 samples, 3.1 kB" in said
    checked = await places.call("server", "validate-config", "--state", "r")
    assert "error" not in checked
    if kind == "one file" and not backend:
        print(said, Path("r/run.toml").read_text(), checked)


async def test_a_mix_and_prepared_rows_are_pinned_to_what_is_there_now(places: Places) -> None:
    await places.call("init", "a", "--model", "gs://bucket/m", "--data", places.names["mix"], "--yes")
    run = load_run(Path("a"))
    assert run.model.checkpoint == Checkpoint(CheckpointKind.GCS, "bucket", "m")
    assert (run.model.data_location.kind, run.model.data_type) == (DataLocationKind.WEIGHTED_HTTP, DataType.PRETRAINING)
    assert "#sha256=" in run.model.data_location.address
    await places.call("init", "b", "--model", "owner/name@main", "--data", places.names["prepared rows"], "--yes")
    run = load_run(Path("b"))
    commit = places.hub.repos["datasets/owner/rows"].refs["main"]
    assert (run.model.data_location.address, run.model.max_seq_len) == (f"owner/rows@{commit}", LENGTH)
    assert (run.model.data_type, run.warnings) == (DataType.FINETUNING, ())


@pytest.mark.whole
async def test_ids_of_four_bytes_are_found_out_and_a_text_gets_the_model_s_own_tokens(
    places: Places, tmp_path: Path
) -> None:
    wide = bytes(range(64)) * 64
    (tmp_path / "web" / "wide.bin").write_bytes(b"".join(bytes((one, 0, 0, 0)) for one in wide))
    await places.call("init", "a", "--data", f"{places.web}/wide.bin", "--yes", "--no-prepare")
    assert load_run(Path("a")).model.data_location.token_size is TokenSize.FOUR_BYTES
    Path("book.txt").write_text("a text " * 999)
    said = await places.call("init", "b", "--model", "owner/name", "--data", "book.txt", "--yes")
    assert sorted(path.name for path in Path("b").iterdir()) == ["data", "data.toml", "run.toml"]
    assert "tokens" in said


@pytest.mark.parametrize(
    ("flag", "named", "words"),
    [
        ("--model", "owner/absent", "--model owner/absent: is no folder here, and hf://owner/absent@main"),
        ("--model", "nowhere", "neither a size .* nor a model's folder, nor owner/name"),
        ("--model", "owner/bare", "no model.safetensors"),
        ("--data", "{web}/absent.bin", r"--data http://.*absent.bin"),
        ("--data", "nowhere.txt", "and data elsewhere are https://"),
        ("--data", "{web}/large.bin", "token 65535 .* 256"),
        ("--data", "hf://datasets/owner/absent", "--data hf://datasets/owner/absent: "),
    ],
)
async def test_what_cannot_be_had_is_said_with_its_flag_and_nothing_is_left(
    places: Places, tmp_path: Path, flag: str, named: str, words: str
) -> None:
    (tmp_path / "web" / "large.bin").write_bytes(b"\xff" * 1_024)
    config = (places.model / "config.json").read_bytes()
    places.hub.add("owner/bare", {"config.json": config})
    flags = {"--model": "owner/name", "--data": places.names["one file"], flag: named.replace("{web}", places.web)}
    pairs = [part for pair in flags.items() for part in pair]
    words_ = ("init", "r", *pairs, "--yes", "--allow-private-hosts")
    refused = await trio.to_thread.run_sync(lambda: refuse(*words_))
    assert re.search(words, " ".join(refused.output.split())), refused.output
    assert not Path("r").exists()
