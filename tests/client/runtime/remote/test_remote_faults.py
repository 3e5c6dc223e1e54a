"""A training whose source of data fails in the middle: a round is filled later, or skipped with the reason (F22).

No wrong token is trained: members' payloads depend on their tokens, and weights are compared with those of local files.
"""

from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path

import numpy as np
import pytest
import trio
from kits.clocks import SteadyClock
from kits.log import choose
from kits.storage.faults import FAULTS, FaultyWay, open_way
from kits.storage.servers import OPTIONS, serve_folder
from kits.tier import few

from psyche.core.rules import rounds
from psyche.core.state.settings import DataLocation, HttpLocation, HttpLocationKind
from psyche.core.state.state import Checkpoint, CheckpointKind, DataLocationKind
from psyche.modeling.snapshot import list_snapshots, read_snapshot_info
from psyche.telemetry import types
from psyche.testing.builders import build_config, build_hash, build_model
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import Swarm, open_swarm
from psyche.wire.trainer import TrainReply, TrainRequest

LENGTH, ROWS = 16, 100
LIMIT_S = 3_000.0
STEPS = 9
LONG_S = 200  # longer than all tries


@pytest.fixture
def quick_clock() -> SteadyClock:
    """Sockets are real, so the clock does not jump; waits are short all the same."""
    return SteadyClock(rate=40.0)


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "compute_seed", draw_alike)


def draw_alike(_uid: bytes, epoch: int, height: int, *_rest: object) -> bytes:
    """Who trains which samples depends on the order of messages too (E3); here it does not, so that runs compare."""
    return build_hash(epoch, height)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    for number in range(2):
        ids = np.arange(number * ROWS * LENGTH, (number + 1) * ROWS * LENGTH, dtype="<u2")
        (folder / f"{number}.bin").write_bytes(ids.tobytes())
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Generator[str]:
    with serve_folder(folder) as address:
        yield address


@pytest.fixture
async def way(served: str) -> AsyncGenerator[FaultyWay]:
    async with open_way(served) as way:
        yield way


class Watching(DummyTrainer):
    """Checks that what it trains are rows of the files, one after another."""

    async def train(self, request: TrainRequest) -> TrainReply:
        ids = np.frombuffer(request.tokens, "<u4")
        assert np.array_equal(ids, (np.arange(ids.size) + ids[0]) % (2 * ROWS * LENGTH))
        assert ids[0] % LENGTH == 0
        return await super().train(request)


async def train(
    folder: Path, location: DataLocation, react: Callable[[list[types.Event]], None] = lambda _: None
) -> tuple[bytes, list[types.Event]]:
    """Train two clients to the end of a run; return the manifest of their weights and all their events.

    `react` is called again and again with the events so far.
    """
    events: list[types.Event] = []
    config = build_config(
        init_min_clients=2, min_clients=1, total_steps=STEPS, rounds_per_epoch=4, max_round_train_time=LONG_S
    )
    (folder / "model").mkdir(parents=True)
    source = Checkpoint(CheckpointKind.LOCAL, "model")
    model = build_model(max_seq_len=LENGTH, checkpoint=source, data_location=location)

    async def watch(swarm: Swarm) -> None:
        while True:
            events.extend(entry.event for member in swarm.members for entry in member.events.drain())
            react(events)
            await trio.sleep(0.2)

    with trio.fail_after(LIMIT_S):
        async with open_swarm(
            2, folder, config=config, model=model, storage=OPTIONS, make_trainer=lambda _: Watching(train_s=0.5)
        ) as swarm, trio.open_nursery() as nursery:  # fmt: skip
            nursery.start_soon(watch, swarm)
            assert await swarm.run() == [0, 0]
            nursery.cancel_scope.cancel()
    manifests: set[bytes] = set()
    for member in swarm.members:
        events += [entry.event for entry in member.events.drain()]
        found = {snapshot.digest: snapshot.path for snapshot in list_snapshots(member.settings.snapshots_dir)}
        assert member.digest is not None
        manifests.add(read_snapshot_info(found[member.digest]).manifest)
    assert len(manifests) == 1
    return manifests.pop(), events


class Spoiler:
    """Spoils the way to the data once two batches are trained."""

    def __init__(self, way: FaultyWay, fault: str, count: int | None) -> None:
        self._way, self._fault, self._count = way, fault, count
        self.is_over = False

    def __call__(self, events: list[types.Event]) -> None:
        if not self._way.fault and not self.is_over and len(choose(events, types.Trained)) >= 2:
            self._way.spoil(self._fault, self._count)
        if self._count is None and choose(events, types.NotSent):
            self.is_over = True
            self._way.spoil("")


def describe(way: FaultyWay) -> DataLocation:
    http = HttpLocation(HttpLocationKind.NUMBERED_FILES, f"{way.address}/{{}}.bin", num_files=2)
    return DataLocation(DataLocationKind.HTTP, http=http)


@pytest.fixture(scope="module")
def wanted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of a run over the files themselves."""
    location = DataLocation(DataLocationKind.LOCAL, str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "compute_seed", draw_alike)
        manifest, _ = trio.run(train, tmp_path_factory.mktemp("here"), location, clock=SteadyClock(rate=40.0))
    return manifest


@pytest.mark.whole
@pytest.mark.parametrize("fault", few(FAULTS, 2))
async def test_rounds_are_filled_after_a_fault_that_passes(
    fault: str, way: FaultyWay, quick_clock: SteadyClock, wanted: bytes, tmp_path: Path
) -> None:
    found, events = await train(tmp_path, describe(way), Spoiler(way, fault, 3))
    assert way.count == 0
    assert not choose(events, types.NotSent)
    assert found == wanted


@pytest.mark.parametrize("fault", few(FAULTS, 1))
async def test_rounds_are_skipped_with_the_reason_while_a_fault_stays(
    fault: str, way: FaultyWay, quick_clock: SteadyClock, tmp_path: Path
) -> None:
    """Afterwards the run goes on as if nothing had been."""
    spoiler = Spoiler(way, fault, None)
    _, events = await train(tmp_path, describe(way), spoiler)
    assert spoiler.is_over
    lost = choose(events, types.NotSent)
    assert all(event.failed and event.reason.startswith(f"data: {way.address}/") for event in lost)
    assert not choose(events, types.Rollback)
    assert len({event.step for event in choose(events, types.Trained)}) >= STEPS - 3
