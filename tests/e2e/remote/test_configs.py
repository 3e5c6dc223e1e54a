"""The original's configuration files, nine of eleven, train as they stand.

`configs` has their keys and values. The other two name a model of HfDeepseek, and no weights at all. The places that
they name are here a double of the Hub and a real server of buckets, with repositories and objects of the same names.
"""

import json
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest
import trio
from kits.commands import call
from kits.log import choose
from kits.storage.hub import Blob, HubDouble, open_hub_double
from kits.storage.servers import OPTIONS, put_objects, serve_buckets
from kits.testnet import call_testnet
from kits.tier import few

from psyche.backends.tcp.backend import TcpBackend
from psyche.backends.tcp.dial import ServerAddress
from psyche.client.engine.round_engine import RoundEngine
from psyche.config.load import LoadedData, LoadedRun, load_data, load_run
from psyche.config.rewrite import Value, set_values
from psyche.core.rules import rounds
from psyche.core.state.settings import DataLocation
from psyche.core.state.state import Checkpoint, CheckpointKind, DataLocationKind
from psyche.modeling.snapshot import list_snapshots
from psyche.modeling.trainer.process import TrainerProcess
from psyche.network.memory.node import MemoryHub
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.storage.port import StorageOptions
from psyche.telemetry import types
from psyche.testing.builders import build_hash, build_identity
from psyche.testing.swarm import Member, build_member
from psyche.testnet.free_port import choose_port
from psyche.wire.access import OPEN

pytestmark = pytest.mark.e2e

FILES: Final = Path(__file__).parent / "configs"
CONFIGS: Final = [str(path.relative_to(FILES)) for path in sorted(FILES.glob("*/*.toml")) if path.name != "data.toml"]
OVER_HTTP: Final = [name for name in CONFIGS if name.startswith("solana-test/")]
LENGTH, ROUNDS, STEPS = 16, 2, 5
MICRO_BATCH: Final = 128
DEADLINE_S: Final = 600.0  # only a broken run reaches it
SHORTER: Final[dict[tuple[str | int, ...], Value]] = {
    ("config", "warmup_time"): 120,
    ("config", "cooldown_time"): 1,
    ("config", "epoch_time"): 3_600,  # an epoch ends after some rounds, so that it has as many here as elsewhere
    ("config", "rounds_per_epoch"): ROUNDS,
    ("config", "max_round_train_time"): 120,
    ("config", "round_witness_time"): 10,
    ("config", "waiting_for_members_extra_time"): 1,
    ("config", "total_steps"): STEPS,
    ("model", "LLM", "max_seq_len"): LENGTH,
}
ADDRESS: Final = ("model", "LLM", "data_location", "Http", "location", "SingleUrl")
LOOKAHEAD = ("model", "LLM", "optimizer", "Distro", "lookahead")
SERVER: Final = ("model", "LLM", "data_location", "Server")
LLAMA, NANO = "emozilla/llama2-20m-init", "pefontana/Nano-Llama"
REVISION: Final = "cf48eac4944f6e954a3d9c9c30e8c865e64e7d03"  # of the model, which is not the newest
TINY_DATA: Final = "tiny-ci-dataset/000_tiny-test.ds"


def describe(name: str) -> str:
    """A case's name, which says so if members of its run are elected for what they do not do yet."""
    has_verifiers = load_run(FILES / name).config.verification_percent > 0
    return name + (", whose verifiers ask for an own look-ahead" if has_verifiers else "")


def make_ids(name: str) -> bytes:
    return np.array([Random(name).randrange(256) for _ in range(500 * LENGTH + 5)], "<u2").tobytes()


@dataclass
class Places:
    """A model, the folder beside the files' that has the data of their data.toml, and the server of buckets."""

    model: Path
    data: Path
    buckets: str

    def get_local(self, run: LoadedRun, folder: Path) -> Path:
        """The same tokens as those of a run's data, on this machine."""
        if run.model.data_location.kind is DataLocationKind.SERVER:
            return folder / "data.toml"
        is_tiny = run.model.checkpoint.name == NANO
        return self.data / "tiny.ds" if is_tiny else self.data / "fineweb-edu-tokenized-llama2"


@pytest.fixture(scope="module")
def places(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Places]:
    root = tmp_path_factory.mktemp("places")
    model = shutil.copytree(tiny_model, root / "model")
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 2_048}))
    for name in ("dolma", "fineweb-10bt", "fineweb-edu-tokenized-llama2"):
        (root / "data" / name).mkdir(parents=True)
        for number in range(2):
            (root / "data" / name / f"{number:03}_{name[:5]}.ds").write_bytes(make_ids(f"{name} {number}"))
    (root / "data" / "tiny.ds").write_bytes(make_ids("tiny"))
    folder = root / "data" / "fineweb-edu-tokenized-llama2"
    with serve_buckets() as buckets:
        tokens = {f"{folder.name}/{path.name}": path.read_bytes() for path in folder.iterdir()}
        put_objects(buckets, "nous-pretraining-public-us", tokens | {"another/999.ds": bytes(1_000)})
        put_objects(buckets, "llama220minit", {path.name: path.read_bytes() for path in model.iterdir()})
        yield Places(model, root / "data", buckets)


@asynccontextmanager
async def open_hub(places: Places, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[HubDouble]:
    """The Hub with the repositories of these files; commands find it and the buckets in their environment."""
    files = {path.name: path.read_bytes() for path in places.model.iterdir()}
    async with open_hub_double() as hub:
        for name in (LLAMA, "emozilla/llama2-1.1b-gqa-init"):
            hub.add(name, files)
        nano = hub.add(NANO, {"README.md": b"newer", TINY_DATA: (places.data / "tiny.ds").read_bytes()})
        nano.commits[REVISION] = {name: Blob(raw, is_lfs=len(raw) > 10_000) for name, raw in files.items()}
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("ALLOW_PRIVATE_HOSTS", "1")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", places.buckets.removeprefix("http://"))
        yield hub


def write_file(folder: Path, name: str, places: Places) -> Path:
    """A file where its user has it, with the data that its data.toml names."""
    path = folder / "config" / name
    shutil.copytree(FILES / Path(name).parent, path.parent)
    (folder / "data").symlink_to(places.data)
    return path


def shorten(path: Path, hub: str) -> None:
    """Replace times, lengths and addresses of a file; nothing else."""
    before = load_run(path)
    location, changes = before.model.data_location, dict(SHORTER)
    if before.config.verification_percent:  # else it would be refused (V4)
        changes[LOOKAHEAD] = "Own"
    if location.kind is DataLocationKind.SERVER:
        changes[SERVER] = f"127.0.0.1:{choose_port()}"
        data = path.with_name("data.toml")
        data.write_text(set_values(data.read_text(), {("seq_len",): LENGTH}))
    elif location.http.url.startswith("https://"):
        changes[ADDRESS] = location.http.url.replace("https://huggingface.co", hub)
    path.write_text(set_values(path.read_text(), changes))
    assert load_run(path).model.optimizer == before.model.optimizer
    assert load_run(path).model.checkpoint == before.model.checkpoint


@pytest.mark.whole
@pytest.mark.parametrize("name", few(CONFIGS, 3), ids=describe)
async def test_each_of_the_files_is_accepted_with_its_model_and_data_as_it_stands(
    name: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path, name, places)
    async with open_hub(places, monkeypatch):
        said = await trio.to_thread.run_sync(lambda: call("server", "validate-config", "--state", path).output)
        if load_run(path).config.verification_percent:
            assert 'set lookahead = "Own"' in said
            path.write_text(set_values(path.read_text(), {LOOKAHEAD: "Own"}))
            said = await trio.to_thread.run_sync(lambda: call("server", "validate-config", "--state", path).output)
    assert f"{path}: fine, but see the " in said
    assert "not checked" not in said
    assert "not yet" not in said


async def train(folder: Path, run: LoadedRun, data: LoadedData | None, options: StorageOptions) -> bytes:
    """A run on a real server with the members that it waits for, whole clients; the manifest of the final weights."""
    settings = ServerSettings(
        run=run, identity=build_identity("server"), state_dir=folder / "server", access=OPEN,
        model_folder=run.model_folder, storage=options, data_files=data,
    )  # fmt: skip
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            bound = await nursery.start(run_server, settings)
            assert not bound.notes, "the first weights are on record"
            async with open_members(nursery, folder, run, bound, options) as members:
                codes = dict[int, int]()
                async with trio.open_nursery() as clients:
                    for member in members:
                        clients.start_soon(run_member, member, codes)
            nursery.cancel_scope.cancel()
    assert set(codes.values()) == {0}
    events = [[entry.event for entry in member.events.drain()] for member in members]
    assert any(choose(found, types.Trained) for found in events)
    assert not [event for found in events for kind in (types.NotSent, types.Rollback) for event in choose(found, kind)]
    (manifest,) = {get_manifest(member.settings.snapshots_dir) for member in members}
    return manifest


@asynccontextmanager
async def open_members(
    nursery: trio.Nursery, folder: Path, run: LoadedRun, bound: BoundServer, options: StorageOptions
) -> AsyncGenerator[list[Member]]:
    address = ServerAddress(host="127.0.0.1", port=bound.port, run_id=run.run_id, key=bound.key)
    hub = MemoryHub(Random(0))
    members: list[Member] = []
    async with AsyncExitStack() as stack:
        for number in range(run.config.init_min_clients):
            identity = build_identity(number)
            trainer = TrainerProcess(threads=1, log_path=folder / f"trainer-{number}.log")
            stack.push_async_callback(trainer.stop)
            await trainer.start()
            backend = TcpBackend(address, identity)
            nursery.start_soon(backend.run)
            network = await stack.enter_async_context(hub.open_node(identity, folder / f"network-{number}"))
            member = build_member(
                RoundEngine(identity), backend, network, trainer, run.folder, number,
                unix_now=time.time, storage=options,
            )  # fmt: skip
            member.settings.micro_batch_size = MICRO_BATCH
            members.append(member)
        yield members


async def run_member(member: Member, codes: dict[int, int]) -> None:
    codes[id(member)] = await member.shell.run()


def get_manifest(snapshots: Path) -> bytes:
    """Of the weights after the last step."""
    newest = list_snapshots(snapshots)[0]
    assert newest.step == STEPS
    return newest.manifest


async def train_here(folder: Path, name: str, places: Places) -> bytes:
    """Train a file's run with model and tokens from folders of this machine; the manifest of the final weights."""
    path = write_file(folder, name, places)
    shorten(path, "")
    run = load_run(path)
    (path.parent / "model").symlink_to(places.model)
    tokens = DataLocation(DataLocationKind.LOCAL, str(places.get_local(run, path.parent)))
    model = replace(run.model, checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"), data_location=tokens)
    return await train(folder, replace(run, model=model), None, OPTIONS)


@pytest.mark.whole
@pytest.mark.parametrize("name", CONFIGS, ids=describe)
async def test_each_of_the_files_trains_to_the_weights_of_local_data_with_the_same_tokens(
    name: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who trains which samples depends on the order of messages too (E3); here it does not, so that runs compare.
    monkeypatch.setattr(rounds, "compute_seed", lambda _uid, epoch, height, *_rest: build_hash(epoch, height))
    path = write_file(tmp_path / "away", name, places)
    async with open_hub(places, monkeypatch) as hub:
        shorten(path, hub.address)
        run = load_run(path)
        data = load_data(path.parent) if run.model.data_location.kind is DataLocationKind.SERVER else None
        options = replace(OPTIONS, hub_endpoint=hub.address, google_endpoint=places.buckets)
        found = await train(tmp_path / "away", run, data, options)
    assert found == await train_here(tmp_path / "here", name, places)


@pytest.mark.whole
@pytest.mark.parametrize("name", OVER_HTTP, ids=describe)
async def test_those_with_data_over_http_train_on_a_local_chain_to_the_same_weights(
    name: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As processes. Each waits for one client alone, which trains all samples of every round."""
    path = write_file(tmp_path / "away", name, places)
    words = ["--backend", "solana", "--slot-ms", "40", "--num-clients", "1", "--threads", "1"]
    words += ["--micro-batch-size", str(MICRO_BATCH)]

    def run() -> bytes:
        with call_testnet(tmp_path / "testnet", path, *words, has_own_host=False) as testnet:
            code = testnet.wait()
            assert code == 0, testnet.describe()
        return get_manifest(testnet.folder / "client-1" / "resume")

    async with open_hub(places, monkeypatch) as hub:
        shorten(path, hub.address)
        found = await trio.to_thread.run_sync(run)
    assert found == await train_here(tmp_path / "here", name, places)
