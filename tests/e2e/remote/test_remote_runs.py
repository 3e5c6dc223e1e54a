"""Whole clients in one process train what a record names by address alone: the same weights as from files here.

The kinds of places are those of the original's configurations: of those, nine train (docs/data.md).
"""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from kits.log import choose
from kits.storage.faults import open_way
from kits.storage.hub import Blob, HubDouble, open_hub_double
from kits.storage.servers import OPTIONS, put_objects, serve_buckets, serve_folder
from kits.tier import few

from psyche.cli.helpers.manifests import make_manifest
from psyche.core.rules import rounds
from psyche.core.state.enums import TokenSize
from psyche.core.state.settings import DataLocation, HttpLocation, HttpLocationKind
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, DataLocationKind, RunState
from psyche.data.stored import open_location
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.snapshot import list_snapshots, read_snapshot_info
from psyche.modeling.trainer.process import TrainerProcess
from psyche.storage.port import StorageOptions
from psyche.telemetry import types
from psyche.telemetry.types import WeightSource
from psyche.testing.builders import build_config, build_hash, build_model
from psyche.testing.swarm import Member, Swarm, open_swarm
from psyche.wire.crypto import blob_id_of

pytestmark = pytest.mark.e2e

LENGTH = 16  # of a sequence
DEADLINE_S = 300.0  # only a broken run reaches it
BUCKET, REPO = "tokens-and-weights", "owner/name"
SEED = bytes(range(32))


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who trains which samples depends on the order of messages too (E3); here it does not, so that runs compare."""
    monkeypatch.setattr(rounds, "compute_seed", lambda _uid, epoch, height, *_rest: build_hash(epoch, height))


@dataclass
class Places:
    """Where the model and the tokens are: in `folder`, at `files`, in a bucket at `buckets`, and on the Hub."""

    model: Path
    folder: Path
    files: str
    buckets: str


@pytest.fixture(scope="module")
def places(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Places]:
    """Three files of tokens, each as two and as four bytes a token; names that count up are in the order of names."""
    folder = tmp_path_factory.mktemp("places")
    for size, dtype in ((2, "<u2"), (4, "<u4")):
        (folder / f"{size}").mkdir()
        for number in range(3):
            ids = np.random.default_rng(number).integers(0, 256, 10 * LENGTH + 3 * number)
            (folder / f"{size}" / f"part-{number + 8:03}.ds").write_bytes(ids.astype(dtype).tobytes())
    with serve_folder(folder) as files, serve_buckets() as buckets:
        tokens = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in folder.rglob("*.ds")}
        model = {f"a-model/{path.name}": path.read_bytes() for path in tiny_model.iterdir()}
        put_objects(buckets, BUCKET, tokens | model)
        yield Places(tiny_model, folder, files, buckets)


@asynccontextmanager
async def open_hub(model: Path) -> AsyncGenerator[tuple[HubDouble, str]]:
    """A Hub with the model in its first commit, which is not the newest one."""
    async with open_hub_double() as hub:
        hub.add(REPO, {path.name: path.read_bytes() for path in model.iterdir()})
        (commit,) = hub.repos[f"models/{REPO}"].commits
        yield hub, commit


@asynccontextmanager
async def open_run(
    folder: Path, places: Places, options: StorageOptions, clients: int = 2, **changes: Any
) -> AsyncGenerator[Swarm]:
    """A run of two members and maybe more, to be run to its end; then all must hold the same weights.

    `steps` and `is_exact`, and what else the model on record has beside what a test's usually has.
    """
    folder.mkdir(exist_ok=True)
    (folder / "model").symlink_to(places.model)
    config = build_config(
        init_min_clients=2, warmup_time=120, cooldown_time=1, waiting_for_members_extra_time=1,
        total_steps=changes.pop("steps", 5), max_round_train_time=120, round_witness_time=10,
        global_batch_size_start=6, global_batch_size_end=6, data_root=changes.pop("root", ZERO32),
    )  # fmt: skip
    exact = changes.pop("is_exact", True)
    model = build_model(max_seq_len=LENGTH, **changes)
    model.optimizer.quantize_1bit = exact
    trainers = [TrainerProcess(threads=1, log_path=folder / f"trainer-{number}.log") for number in range(clients)]
    first = compute_first_digest(FolderFiles(places.model), is_exact=exact)
    try:
        for trainer in trainers:
            await trainer.start()
        with trio.fail_after(DEADLINE_S):
            async with open_swarm(
                clients, folder, config=config, make_trainer=trainers.__getitem__, first_weights=first,
                storage=options, model=model,
            ) as swarm:  # fmt: skip
                yield swarm
    finally:
        for trainer in trainers:
            await trainer.stop()


async def train(folder: Path, places: Places, options: StorageOptions, **changes: Any) -> bytes:
    """Train two epochs; return the manifest of the final weights, the same for all clients."""
    async with open_run(folder, places, options, **changes) as swarm:
        assert await swarm.run() == [0, 0]
    manifests = {get_manifest(member) for member in swarm.members}
    assert len(manifests) == 1
    return manifests.pop()


def get_manifest(member: Member) -> bytes:
    found = {snapshot.digest: snapshot.path for snapshot in list_snapshots(member.settings.snapshots_dir)}
    assert member.digest in found
    return read_snapshot_info(found[member.digest]).manifest


def describe_files(places: Places, case: "Case") -> DataLocation:
    """The same tokens, as files on this machine."""
    size = "TwoBytes" if case.size == 2 else "FourBytes"
    path = places.folder / f"{case.size}" / case.file
    lines = [f'dir = "{path}"', f'token_size = "{size}"', f"seq_len = {LENGTH}"]
    lines += [f"shuffle_seed = {[*case.seed]}"] if case.seed else []
    description = places.folder / f"{case.name}.toml"
    description.write_text("\n".join(lines))
    return DataLocation(DataLocationKind.LOCAL, str(description))


def build_remote(http: HttpLocation, size: int = 2, seed: bytes | None = None) -> DataLocation:
    token_size = TokenSize.TWO_BYTES if size == 2 else TokenSize.FOUR_BYTES
    return DataLocation(DataLocationKind.HTTP, http=http, token_size=token_size, shuffle_seed=seed)


GCP = HttpLocation(HttpLocationKind.GCP, BUCKET, filter_directory="2")
ONE = HttpLocation(HttpLocationKind.SINGLE_URL, "{files}/4/part-009.ds")
ON_HUB = HttpLocation(HttpLocationKind.SINGLE_URL, f"{{hub}}/{REPO}/resolve/main/tokens/part-008.ds")
MANY = HttpLocation(HttpLocationKind.NUMBERED_FILES, "{files}/4/part-{}.ds", "", 8, 3, 3)
HUB = Checkpoint(CheckpointKind.HUB, REPO)
GCS = Checkpoint(CheckpointKind.GCS, BUCKET, "a-model")


@dataclass(frozen=True)
class Case:
    """A kind of the original's configurations."""

    name: str
    checkpoint: Checkpoint
    http: HttpLocation | None  # None: the data is here, as if a server had it
    size: int = 2
    seed: bytes | None = None
    is_exact: bool = True
    has_revision: bool = False
    file: str = ""  # which one is all of the data


CASES = (
    Case("the sample", HUB, GCP),
    Case("weights in a bucket", GCS, GCP),
    Case("a commit, and one file on the Hub", HUB, ON_HUB, has_revision=True, file="part-008.ds"),
    Case("numbered, shuffled, four bytes", HUB, MANY, size=4, seed=SEED),
    Case("one file of four bytes", HUB, ONE, size=4, file="part-009.ds"),
    Case("full values", HUB, GCP, is_exact=False),
    Case("only the weights are away", HUB, None),
)


@pytest.mark.whole
@pytest.mark.parametrize("case", few(CASES), ids=lambda case: case.name)
async def test_each_kind_of_place_trains_to_the_weights_of_the_same_files_here(
    case: Case, places: Places, tmp_path: Path
) -> None:
    async with open_hub(places.model) as (hub, commit):
        if case.http is ON_HUB:
            tokens = (places.folder / "2" / case.file).read_bytes()
            hub.repos[f"models/{REPO}"].commit({f"tokens/{case.file}": Blob(tokens, is_lfs=True)})
        options = replace(OPTIONS, hub_endpoint=hub.address, google_endpoint=places.buckets)
        here = describe_files(places, case)
        checkpoint = replace(case.checkpoint, revision=commit) if case.has_revision else case.checkpoint
        away = here if case.http is None else build_remote(fill_in(case.http, places, hub), case.size, case.seed)
        found = await train(
            tmp_path / "away", places, options, checkpoint=checkpoint, data_location=away, is_exact=case.is_exact
        )
        local = Checkpoint(CheckpointKind.LOCAL, "model")
        wanted = await train(
            tmp_path / "here", places, OPTIONS, checkpoint=local, data_location=here, is_exact=case.is_exact
        )
    assert found == wanted


def fill_in(http: HttpLocation, places: Places, hub: HubDouble) -> HttpLocation:
    return replace(http, url=http.url.replace("{files}", places.files).replace("{hub}", hub.address))


@pytest.mark.whole
async def test_other_bytes_from_the_place_while_a_run_trains_leave_no_wrong_token(
    places: Places, tmp_path: Path
) -> None:
    local = Checkpoint(CheckpointKind.LOCAL, "model")
    here = describe_files(places, Case("spoilt", local, MANY, size=4))
    wanted = await train(tmp_path / "here", places, OPTIONS, checkpoint=local, data_location=here)
    async with open_way(places.files) as way:
        away = build_remote(replace(MANY, url=f"{way.address}/4/part-{{}}.ds"), size=4)
        raw = await make_manifest(
            *open_location(away.http, OPTIONS), 4, is_hashed=True, progress=lambda _done, _all: None
        )
        (tmp_path / "away").mkdir()
        (tmp_path / "away" / "data.manifest").write_bytes(raw)
        settings = {"checkpoint": local, "data_location": away, "root": blob_id_of(raw)}
        async with open_run(tmp_path / "away", places, OPTIONS, **settings) as swarm, trio.open_nursery() as nursery:

            async def spoil() -> None:
                while swarm.coordinator.state.run_state is not RunState.ROUND_TRAIN:
                    await trio.sleep(0.02)
                way.spoil("other_bytes", 1)  # that MiB is asked for once more

            nursery.start_soon(spoil)
            assert await swarm.run() == [0, 0]
    assert way.count == 0, "an answer was spoilt"
    assert {get_manifest(member) for member in swarm.members} == {wanted}


@pytest.mark.whole
async def test_while_the_hub_is_away_no_round_is_lost_and_who_joins_has_the_weights_from_peers(
    places: Places, tmp_path: Path
) -> None:
    async with open_hub(places.model) as (hub, _):
        options = replace(OPTIONS, hub_endpoint=hub.address, google_endpoint=places.buckets)
        away = {"checkpoint": HUB, "data_location": build_remote(GCP), "steps": 17}
        async with open_run(tmp_path / "run", places, options, 3, **away) as swarm, trio.open_nursery() as nursery:

            async def take_away() -> None:
                while swarm.coordinator.state.progress.epoch < 1:
                    await trio.sleep(0.05)
                hub.repos.clear()

            nursery.start_soon(take_away)
            assert await swarm.run(delays={2: 5.0}) == [0, 0, 0]
    events = [[entry.event for entry in member.events.drain()] for member in swarm.members]
    loads = [choose(found, types.ModelLoaded)[0].source for found in events]
    assert loads == [WeightSource.CONFIGURED, WeightSource.CONFIGURED, WeightSource.PEERS]
    assert choose(events[2], types.Trained)
    for found in events:
        assert not choose(found, types.NotSent)
        assert not choose(found, types.Rollback)
    assert len({get_manifest(member) for member in swarm.members}) == 1
