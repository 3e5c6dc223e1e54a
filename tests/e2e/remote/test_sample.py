"""The sample of the original's documentation trains as it stands, with processes: on a server, and on a chain.

Its times and lengths are made shorter; its Hub is a double with a tiny model, its bucket a real server of buckets.
"""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
from kits.storage.hub import HubDouble, open_hub_double
from kits.storage.servers import put_objects, serve_buckets
from kits.testnet import CalledTestnet, call_testnet

from psyche.config.load import load_run
from psyche.config.rewrite import set_values

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

SAMPLE: Final = Path(__file__).resolve().parents[3] / "config" / "sample" / "run.toml"
LENGTH, EPOCHS, ROUNDS = 32, 2, 3
SHORTER: Final[dict[tuple[str | int, ...], int]] = {
    ("config", "warmup_time"): 120,
    ("config", "cooldown_time"): 1,
    ("config", "rounds_per_epoch"): ROUNDS,
    ("config", "max_round_train_time"): 60,
    ("config", "round_witness_time"): 10,
    ("config", "total_steps"): EPOCHS * ROUNDS + 1,
    ("model", "LLM", "max_seq_len"): LENGTH,
}
LOCAL: Final = """
[model.LLM.checkpoint.Local]
path = "model"

[model.LLM.data_location]
Local = "tokens"
"""
ON_CHAIN: Final = ("--backend", "solana", "--slot-ms", "40")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "tokens"
    folder.mkdir()
    for number in range(2):
        ids = np.random.default_rng(number).integers(0, 256, 20 * LENGTH + 5).astype("<u2")
        (folder / f"{number:03}_fineweb.ds").write_bytes(ids.tobytes())
    return folder


@pytest.fixture(scope="module")
def buckets(tokens: Path) -> Generator[str]:
    gcp = load_run(SAMPLE).model.data_location.http
    with serve_buckets() as address:
        objects = {f"{gcp.filter_directory}/{path.name}": path.read_bytes() for path in tokens.iterdir()}
        put_objects(address, gcp.url, objects | {"another/999.ds": bytes(1_000)})
        yield address


@asynccontextmanager
async def open_places(model: Path, buckets: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[HubDouble]:
    """What the sample names, at the addresses that other programs for the Hub and for Google's buckets heed too."""
    async with open_hub_double() as hub:
        hub.add(load_run(SAMPLE).model.checkpoint.name, {path.name: path.read_bytes() for path in model.iterdir()})
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("ALLOW_PRIVATE_HOSTS", "1")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", buckets.removeprefix("http://"))
        yield hub


def write_sample(folder: Path) -> Path:
    folder.mkdir()
    (folder / "run.toml").write_text(set_values(SAMPLE.read_text(), SHORTER))
    assert load_run(folder).model.checkpoint == load_run(SAMPLE).model.checkpoint
    assert load_run(folder).model.data_location == load_run(SAMPLE).model.data_location
    return folder


def write_local(folder: Path, model: Path, tokens: Path) -> Path:
    """The sample's run, with model and tokens in its folder."""
    text = (write_sample(folder) / "run.toml").read_text()
    before, after = text.index("[model.LLM.checkpoint.Hub]"), text.index("[model.LLM.lr_schedule")
    (folder / "run.toml").write_text(text[:before] + LOCAL + text[after:])
    (folder / "model").symlink_to(model)
    (folder / "tokens").symlink_to(tokens)
    return folder


async def run(folder: Path, config: Path, clients: int, *options: str) -> tuple[dict[str, Any], CalledTestnet]:
    """A testnet to its end; its summary."""

    def call() -> CalledTestnet:
        words = ["--num-clients", str(clients), "--wait-for-all", "--threads", "1", *options]
        with call_testnet(folder, config, *words, has_own_host=False) as testnet:
            code = testnet.wait()
            assert code == 0, testnet.describe()
        return testnet

    testnet = await trio.to_thread.run_sync(call)
    summary = json.loads((testnet.folder / "summary.json").read_text())
    assert not summary["problems"], testnet.describe()
    return summary, testnet


@pytest.mark.parametrize("options", [(), ON_CHAIN], ids=["server", "chain"])
async def test_two_clients_train_the_sample_to_equal_weights(
    options: tuple[str, ...], tiny_model: Path, buckets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_places(tiny_model, buckets, monkeypatch) as hub:
        summary, testnet = await run(tmp_path / "testnet", write_sample(tmp_path / "config"), 2, *options)
        (commit,) = hub.repos["models/emozilla/llama2-20m-init"].commits
        assert any(commit in call.path for call in hub.asked), "it is read by its commit"
    assert summary["equal"], testnet.describe()
    for name in ("client-1", "client-2"):
        events = testnet.read(name)
        assert len([event for event in events if event["kind"] == "trained"]) == EPOCHS * ROUNDS, testnet.describe()
        assert not [event for event in events if event["kind"] in ("not_sent", "rollback", "dropped", "error")]


async def test_one_client_trains_it_to_the_weights_of_local_files(
    tokens: Path, tiny_model: Path, buckets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one client: which of several trains which samples is drawn anew in every run."""
    async with open_places(tiny_model, buckets, monkeypatch):
        sample = write_sample(tmp_path / "sample")
        local = write_local(tmp_path / "local", tiny_model, tokens)
        summaries = [
            (await run(tmp_path / name, config, 1, *options))[0]
            for name, config, options in (
                ("on-server", sample, ()), ("on-chain", sample, ON_CHAIN), ("here", local, ()),
            )
        ]  # fmt: skip
    assert len({summary["clients"][0]["weights_sha256"] for summary in summaries}) == 1
