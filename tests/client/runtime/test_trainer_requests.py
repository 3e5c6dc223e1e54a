"""What the trainer is asked and what is made of its answers (S7 to S9, A4, P6, P8)."""

import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from kits.clocks import wait_until_all_rest
from kits.models import write_model_folder
from runtime_kit import TaskShell, build_apply, build_train, write_snapshot

from psyche.client.engine import actions as act
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.trainer_tasks import TrainerTasks
from psyche.client.runtime.weights.exporting import remove_old_exports
from psyche.client.runtime.weights.loading import Source
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.core.state.state import ZERO32
from psyche.errors import DataError, NetworkError, TrainerError, UnusableDataError, UnusableModelError
from psyche.modeling.first_weights import compute_first_digest
from psyche.modeling.model_files import FolderFiles
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.testing.dummy_trainer import DummyTrainer, build_weights
from psyche.wire.crypto import compute_chain_digest, compute_state_digest
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    LoadReply,
    LoadRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

LIMIT_S = 120


class Trainer(DummyTrainer):
    """Fails as told, once it may, and starts again once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.loads: list[LoadRequest] = []
        self.restarts = 0
        self.may_go_on = trio.Event()
        self.may_go_on.set()

    async def train(self, request: TrainRequest) -> TrainReply:
        await self.may_go_on.wait()
        self.note("train")
        return await super().train(request)

    def note(self, call: str) -> None:
        self.calls.append(call)
        waiting = self.failures.get(call, [])
        if waiting:
            raise waiting.pop(0)

    async def load(self, request: LoadRequest) -> LoadReply:
        self.loads.append(request)
        self.note("load")
        return await super().load(request)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        self.note("apply")
        return await super().apply(request)

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        self.note(f"snapshot {request.kind}")
        if request.kind == "export":
            shutil.rmtree(request.path, ignore_errors=True)
            Path(request.path).mkdir(parents=True)
            return SnapshotReply(path=request.path, size_bytes=1, weight_root=ZERO32, seconds=0.0)
        return await super().snapshot(request)

    async def restart(self) -> None:
        self.restarts += 1
        self.calls.append("restart")
        await self.may_go_on.wait()
        await super().restart()


@dataclass
class Loader:
    own: Source | None = None
    configured: Source | None = None
    peers: Source | None = None
    fetches: int = 0
    cleaned: int = 0

    async def find_local(self, _digest: bytes) -> Source | None:
        return self.own

    def find_configured(self, *_arguments: object) -> Source | None:
        return self.configured

    async def fetch(self, *_arguments: object) -> Source:
        self.fetches += 1
        if self.peers is None:
            raise NetworkError("no peer has it")
        return self.peers

    async def remove_leftovers(self) -> None:
        self.cleaned += 1


@dataclass
class Place:
    root: Path
    trainer: Trainer = field(default_factory=Trainer)
    loader: Loader = field(default_factory=Loader)
    shell: TaskShell = field(default_factory=TaskShell)

    def __post_init__(self) -> None:
        settings = ClientSettings(run_id="run", data_dir=self.root)
        settings.checkpoint_dir = self.root / "exports"
        self.replay = ReplayStore(self.root / "replay", 1 << 20)
        self.tasks = TrainerTasks(
            self.trainer, self.loader, self.replay, self.shell,  # type: ignore[arg-type]
            settings=settings, snapshots=self.root / "resume", payloads=self.shell, data=self.shell,  # type: ignore[arg-type]
        )  # fmt: skip

    async def ask(self, *actions: Any) -> list[act.EngineEvent]:
        wanted = len(self.shell.events) + len(actions)
        for action in actions:
            self.tasks.put(action)
        with trio.fail_after(LIMIT_S):
            while len(self.shell.events) < wanted:
                await self.shell.heard.wait()
        return self.shell.events[wanted - len(actions) :]

    async def write_snapshot(self, name: str) -> tuple[Source, bytes]:
        path = self.root / name
        return Source(path, is_snapshot=True, name=name, is_checked=True), await write_snapshot(path, name)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.tasks.run)
        yield place
        nursery.cancel_scope.cancel()


def build_export(step: int) -> act.Export:
    return act.Export(0, step, 10 * step, build_hash("digest"), 4_096)


def build_load(certified: bytes | None = None) -> act.Load:
    return act.Load(0, certified, ZERO32, keep_momentum=True)


# --- loading


async def test_an_own_snapshot_is_loaded_before_anything_else(place: Place) -> None:
    place.loader.own, digest = await place.write_snapshot(types.WeightSource.OWN_SNAPSHOT)
    place.loader.configured = Source(place.root, is_snapshot=False, name="configured source")
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.Loaded)
    assert (event.digest, event.source, event.epoch) == (digest, types.WeightSource.OWN_SNAPSHOT, 0)
    assert [load.keep_momentum for load in place.trainer.loads] == [True]
    assert place.loader.fetches == 0


async def test_a_source_that_gives_other_weights_is_passed_over(place: Place) -> None:
    """S8: exactly the certified weights, from wherever they can be had."""
    place.loader.own, _ = await place.write_snapshot("own but other")
    place.loader.configured = Source(place.root, is_snapshot=False, name="configured source")
    place.loader.peers, digest = await place.write_snapshot(types.WeightSource.PEERS)
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.Loaded)
    assert event.source == types.WeightSource.PEERS
    assert len(place.trainer.loads) == 3


async def test_a_damaged_source_is_passed_over(place: Place) -> None:
    place.loader.own, digest = await place.write_snapshot("own but damaged")
    place.trainer.failures["load"] = [TrainerError("the bytes of a tensor are damaged")]
    place.loader.peers, _ = await place.write_snapshot("own but damaged")
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.Loaded)
    assert len(place.trainer.loads) == 2


async def test_where_nobody_has_the_weights_every_reason_is_said(place: Place) -> None:
    place.loader.own, _ = await place.write_snapshot("own but other")
    (event,) = await place.ask(build_load(build_hash("asked for")))
    assert isinstance(event, act.LoadFailed)
    assert "own but other: gives" in event.reason
    assert "no peer has it" in event.reason


async def test_without_the_configured_model_the_way_to_get_it_is_said(place: Place) -> None:
    (event,) = await place.ask(build_load(None))
    assert isinstance(event, act.LoadFailed)
    assert "model folder" in event.reason
    assert "--local-root" in event.reason


@pytest.mark.parametrize(
    ("certified", "error", "for_good"),
    [
        (None, UnusableModelError("AR6: not causal"), True),
        (None, TrainerError("no room"), False),
        ("own", UnusableModelError("AR6: not causal"), True),
        ("other", UnusableModelError("AR6: not causal"), False),
    ],
)
async def test_a_configured_model_that_cannot_be_trained_is_for_good_only_where_the_run_is_at_it(
    place: Place, certified: str | None, error: Exception, for_good: bool
) -> None:
    """Of other weights, peers have those of the run."""
    folder = write_model_folder(place.root / "model")
    own = compute_first_digest(FolderFiles(folder), is_exact=True)
    place.loader.configured = Source(folder, is_snapshot=False, name=types.WeightSource.CONFIGURED)
    place.trainer.failures["load"] = [error]
    (event,) = await place.ask(build_load({None: None, "own": own, "other": build_hash("other")}[certified]))
    assert isinstance(event, act.LoadFailed)
    assert event.for_good == for_good
    assert str(error) in event.reason
    assert "is not here" not in event.reason


async def test_a_certified_model_that_cannot_be_trained_is_for_good(place: Place) -> None:
    place.loader.peers, digest = await place.write_snapshot(types.WeightSource.PEERS)
    place.trainer.failures["load"] = [UnusableModelError("max_position_embeddings is 16")]
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.LoadFailed)
    assert event.for_good


async def test_a_trainer_that_crashes_while_loading_is_started_again_and_the_load_failed(place: Place) -> None:
    place.loader.own, digest = await place.write_snapshot(types.WeightSource.OWN_SNAPSHOT)
    place.trainer.failures["load"] = [TrainerFailure(FailureKind.CRASHED, "gone")]
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.LoadFailed)
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.Loaded)
    assert place.trainer.restarts == 1


async def test_weights_of_the_configured_source_are_kept_as_a_snapshot_at_once(place: Place) -> None:
    """S9: who lacks that source gets them here."""
    place.loader.configured = Source(place.root, is_snapshot=False, name="configured source")
    place.tasks.put(build_load(None))
    with trio.fail_after(LIMIT_S):
        while not any(isinstance(e, act.SnapshotWritten) for e in place.shell.events):
            await place.shell.heard.wait()
    loaded = next(e for e in place.shell.events if isinstance(e, act.Loaded))
    written = next(e for e in place.shell.events if isinstance(e, act.SnapshotWritten))
    assert written.digest == loaded.digest
    assert len(list((place.root / "resume").glob("*/snapshot.json"))) == 1


# --- P8


async def test_final_weights_are_checked_wherever_they_come_from(place: Place) -> None:
    """P8, S9: an own snapshot that gives other weights than its name says is not believed."""
    place.loader.own, _ = await place.write_snapshot("own but other")
    place.loader.peers, digest = await place.write_snapshot(types.WeightSource.PEERS)
    (event,) = await place.ask(act.FetchSnapshot(digest))
    assert event == act.SnapshotFetched(digest, ok=True)
    assert place.loader.fetches == 1


async def test_final_weights_that_nobody_has_are_said_to_be_missing(place: Place) -> None:
    digest = build_hash("final")
    (event,) = await place.ask(act.FetchSnapshot(digest))
    assert event == act.SnapshotFetched(digest, ok=False)
    place.loader.peers, _ = await place.write_snapshot("other")
    (event,) = await place.ask(act.FetchSnapshot(digest))
    assert event == act.SnapshotFetched(digest, ok=False)


async def test_final_weights_that_cost_the_trainer_its_life_are_asked_for_again(place: Place) -> None:
    """P8, F20."""
    place.loader.own, digest = await place.write_snapshot("final")
    place.trainer.failures["load"] = [TrainerFailure(FailureKind.CRASHED, "gone")]
    events = await place.ask(act.FetchSnapshot(digest), act.FetchSnapshot(digest))
    assert act.TrainerLost("gone") in events
    assert act.SnapshotFetched(digest, ok=False) in events


# --- P6


async def test_a_snapshot_of_other_weights_than_its_digest_says_is_none(place: Place) -> None:
    """P6: the weights may have changed since the digest was computed; certified must name what can be loaded."""
    place.trainer.weights = build_weights("right")
    chain = build_hash("chain")
    digest = compute_state_digest(chain, place.trainer.compute_part())
    snapshot = act.WriteSnapshot(1, 3, 4, 40, chain, digest, ZERO32)
    (event,) = await place.ask(snapshot)
    assert isinstance(event, act.SnapshotWritten)
    assert event.reply is not None
    place.trainer.weights = build_weights("a flipped bit")
    (event,) = await place.ask(snapshot)
    assert (event.digest, event.reply) == (digest, None)
    assert event.failed is not None, "so that it can be tried again"
    assert list((place.root / "resume").iterdir()) == [], "nobody can be given it"


# --- S7


def build_body(height: int) -> bytes:
    return DummyTrainer().codec.make(build_hash("body", height))


def store_sets(place: Place, heights: int) -> None:
    for height in range(heights):
        action = build_apply(height, (b"b" * 32,), epoch=1, run_update=height > 1)
        place.replay.write(action, (build_body(height),))


async def test_a_replay_gives_the_digests_of_every_height(place: Place) -> None:
    """S7, S1."""
    place.loader.own, digest = await place.write_snapshot("certified")
    store_sets(place, 4)
    place.shell.replay_written.set()
    (event,) = await place.ask(act.Heal(1, digest, 3))
    assert isinstance(event, act.Healed)
    twin = DummyTrainer(name="certified")
    chain, digests = digest, {}
    for height in range(4):
        reply = await twin.apply(
            ApplyRequest(height=height, lr=1e-3, payloads=(build_body(height),), run_update=height > 1,
                         full_digest=True, random_seed=height)
        )  # fmt: skip
        chain = compute_chain_digest(chain, 1, height, height + 1, height, ((0, build_hash("commitment", 0)),))
        digests[height] = compute_state_digest(chain, reply.weight_part)
    assert (event.chain, event.digests, event.is_full) == (chain, digests, dict.fromkeys(range(4), True))
    assert np.array_equal(place.trainer.weights, twin.weights)


async def test_a_replay_passes_over_an_own_snapshot_that_is_not_what_it_says(place: Place) -> None:
    """S7: a disk may lie; peers may still have the weights."""
    place.loader.own, _ = await place.write_snapshot("own but other")
    place.loader.peers, digest = await place.write_snapshot("certified")
    store_sets(place, 1)
    place.shell.replay_written.set()
    (event,) = await place.ask(act.Heal(1, digest, 0))
    assert isinstance(event, act.Healed)
    assert place.loader.fetches == 1


async def test_a_replay_waits_for_what_is_still_being_written(place: Place) -> None:
    """S7: the newest set may be on its way to the disk."""
    place.loader.own, digest = await place.write_snapshot("certified")
    store_sets(place, 1)
    place.tasks.put(act.Heal(1, digest, 1))
    await wait_until_all_rest()
    assert place.shell.events == []
    store_sets(place, 2)
    place.shell.replay_written.set()
    with trio.fail_after(LIMIT_S):
        while not place.shell.events:
            await place.shell.heard.wait()
    assert isinstance(place.shell.events[0], act.Healed)


@pytest.mark.parametrize("trouble", ["missing", "damaged", "wrong weights", "no weights", "crash"])
async def test_a_replay_that_cannot_be_done_says_why(place: Place, trouble: str) -> None:
    """S7."""
    place.loader.own, digest = await place.write_snapshot("certified")
    store_sets(place, 2 if trouble == "missing" else 3)
    place.shell.replay_written.set()
    reason = {"missing": "lacks the set of round 2", "damaged": "damaged", "wrong weights": "does not give",
              "no weights": "no peer has it", "crash": "gone"}[trouble]  # fmt: skip
    if trouble == "damaged":
        sorted((place.root / "replay").rglob("*.set"))[1].write_bytes(b"noise")
    if trouble == "wrong weights":
        place.loader.own = None
        place.loader.peers, _ = await place.write_snapshot("other")
    if trouble == "no weights":
        place.loader.own = None
    if trouble == "crash":
        place.trainer.failures["apply"] = [TrainerFailure(FailureKind.HUNG, "gone")]
    (event,) = await place.ask(act.Heal(1, digest, 2))
    assert isinstance(event, act.HealFailed)
    assert reason in event.reason
    assert event.weights_kept == (trouble in ("missing", "no weights")), "whether the trainer was asked to load"
    assert place.trainer.restarts == (trouble == "crash")


# --- training


async def test_a_training_that_waits_for_data_is_cut_and_holds_up_nothing(place: Place) -> None:
    """A4, F22: a data server that is away must not keep this client from applying."""
    place.tasks.put(build_train(3))
    place.tasks.put(build_apply(4, run_update=False))
    await trio.testing.wait_all_tasks_blocked()
    assert place.shell.events == []
    await place.tasks.cancel(act.CancelTrain(0, 3))
    with trio.fail_after(LIMIT_S):
        while len(place.shell.events) < 2:
            await place.shell.heard.wait()
    trained, applied = place.shell.events
    assert isinstance(trained, act.Trained)
    assert trained.reply.cancelled
    assert isinstance(applied, act.Applied)
    assert place.trainer.trained == 0


async def test_a_training_that_was_cut_before_its_turn_is_never_begun(place: Place) -> None:
    await place.tasks.cancel(act.CancelTrain(0, 3))
    (event,) = await place.ask(build_train(3))
    assert isinstance(event, act.Trained)
    assert event.reply.cancelled
    assert place.trainer.trained == 0


@pytest.mark.parametrize("error", [DataError("the file is gone"), NetworkError("the server is away")])
async def test_data_that_cannot_be_had_costs_the_batch_only(place: Place, error: Exception) -> None:
    """F22."""
    place.shell.data.set()
    place.shell.data_error = error
    (event,) = await place.ask(build_train())
    assert event == act.TrainFailed(0, 0, f"data: {error}", trainer_lost=False)
    place.shell.data_error = UnusableDataError("token 4000 is not below the vocabulary's size 4000")
    (event,) = await place.ask(build_train(1))
    assert isinstance(event, act.TrainFailed)
    assert event.for_good
    place.shell.data_error = None
    (event,) = await place.ask(build_train(2))
    assert isinstance(event, act.Trained)
    assert event.reply.payload


# --- P6, F16


async def test_a_snapshot_that_fails_is_said_and_costs_no_weights(place: Place) -> None:
    """F16: training goes on."""
    place.trainer.failures["snapshot resume"] = [TrainerError("no space left")]
    chain = build_hash("chain")
    digest = compute_state_digest(chain, place.trainer.compute_part())
    snapshot = act.WriteSnapshot(0, 5, 6, 60, chain, digest, ZERO32)
    (event,) = await place.ask(snapshot)
    assert isinstance(event, act.SnapshotWritten)
    assert event.reply is None
    (event,) = await place.ask(snapshot)
    assert isinstance(event, act.SnapshotWritten)
    assert event.reply is not None


async def test_a_disk_that_fails_in_between_ends_no_client(place: Place) -> None:
    """F16: errors of the system are answers too."""
    place.trainer.failures["snapshot resume"] = [OSError(28, "No space left on device")]
    (event,) = await place.ask(act.WriteSnapshot(0, 5, 6, 60, ZERO32, build_hash("digest"), ZERO32))
    assert isinstance(event, act.SnapshotWritten)
    assert event.reply is None
    place.shell.data.set()
    (event,) = await place.ask(build_train())
    assert isinstance(event, act.Trained)


async def test_idle_is_when_everything_is_answered_also_what_was_dropped(place: Place) -> None:
    """P8: the last export is waited for; what a lost trainer was still to do is not."""
    place.trainer.failures["apply"] = [TrainerFailure(FailureKind.CRASHED, "gone")]
    apply = build_apply(4, run_update=False)
    place.tasks.put(apply)
    place.tasks.put(apply)
    place.tasks.put(build_export(5))
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    place.tasks.put(build_export(6))
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    assert [p.name for p in (place.root / "exports").iterdir()] == ["run-step6"]


# --- exports


def make_exports(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "model.safetensors").write_bytes(b"weights")


def test_only_the_newest_exports_of_this_run_are_kept(tmp_path: Path) -> None:
    """By their step, not by their name: 9 comes before 10."""
    make_exports(
        tmp_path, "run-step9", "run-step10", "run-step100", "run-step2", "other-step1", "run-stepx", "run-2-step1"
    )
    remove_old_exports(tmp_path, "run", 2)
    assert {p.name for p in tmp_path.iterdir()} == {
        "run-step10", "run-step100", "other-step1", "run-stepx", "run-2-step1",
    }  # fmt: skip


@pytest.mark.parametrize("keep", [0, -1, 1])
def test_the_newest_export_is_always_kept(tmp_path: Path, keep: int) -> None:
    make_exports(tmp_path, "run-step1", "run-step2")
    (tmp_path / "run-step3").write_bytes(b"a file is no export")
    remove_old_exports(tmp_path, "run", keep)
    assert {p.name for p in tmp_path.iterdir()} == {"run-step2", "run-step3"}


async def test_an_export_replaces_older_ones(place: Place) -> None:
    make_exports(place.root / "exports", *(f"run-step{n}" for n in (1, 2, 3)))
    place.tasks.put(build_export(9))
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    assert {p.name for p in (place.root / "exports").iterdir()} == {"run-step2", "run-step3", "run-step9"}
    assert place.shell.events == [], "nobody waits for an export"


@pytest.mark.parametrize(
    ("digest", "dtype", "is_left"),
    [("digest", "bfloat16", True), ("other", "bfloat16", False), ("digest", "float32", False)],
)
async def test_an_export_of_the_same_weights_is_left_as_its_user_made_it(
    place: Place, digest: str, dtype: str, is_left: bool
) -> None:
    """A client that is started again after the end of its run has the same weights to export."""
    folder = place.root / "exports" / "run-step9"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(f"Licence: mine. `{build_hash(digest).hex()}`")
    (folder / "config.json").write_text(json.dumps({"dtype": dtype}))
    (folder / "converted.gguf").write_bytes(b"GGUF")
    place.tasks.put(build_export(9))
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    assert (folder / "converted.gguf").exists() == is_left
    assert [event.path for event in place.shell.told.get(types.Exported)] == [str(folder)]


# --- a trainer that fails between the engine's requests


async def test_a_lost_trainer_is_reported_before_the_new_one_is_up(place: Place) -> None:
    """The others must not wait for a member whose trainer takes half a minute to come back."""
    place.trainer.failures["load"] = [TrainerFailure(FailureKind.HUNG, "it hung")]
    place.loader.own, digest = await place.write_snapshot(types.WeightSource.OWN_SNAPSHOT)
    place.trainer.may_go_on = trio.Event()
    (event,) = await place.ask(build_load(digest))
    assert isinstance(event, act.LoadFailed)
    await trio.testing.wait_all_tasks_blocked()
    assert place.trainer.calls == ["load", "restart"]


async def test_what_was_asked_of_lost_weights_is_never_run_on_new_ones(place: Place) -> None:
    place.shell.data.set()
    place.trainer.failures["train"] = [TrainerFailure(FailureKind.CRASHED, "it died")]
    place.trainer.may_go_on = trio.Event()
    place.tasks.put(build_train(3))
    await wait_until_all_rest()
    for action in (build_apply(4), build_train(4), build_load()):
        place.tasks.put(action)
    place.trainer.may_go_on.set()
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    assert place.trainer.calls == ["train", "restart"], "nothing of the former weights was run"
    lost, stale, failed = place.shell.events
    assert lost == act.TrainFailed(0, 3, "it died", trainer_lost=True)
    assert (type(stale), stale.height, stale.trainer_lost) == (act.TrainFailed, 4, False)  # type: ignore[union-attr]
    assert isinstance(failed, act.LoadFailed), "what does not need the former weights was"


@pytest.mark.parametrize("known", [b"blob", b"other"])
async def test_an_apply_has_the_payloads_of_its_asking_and_without_them_costs_the_weights(
    place: Place, known: bytes
) -> None:
    place.shell.bodies = {known: build_body(4)}
    place.tasks.put(build_apply(4, (b"blob",)))
    place.shell.bodies = {}  # its round is over for everybody else
    with trio.fail_after(LIMIT_S):
        await place.tasks.wait_idle()
    (event,) = place.shell.events
    assert isinstance(event, act.Applied if known == b"blob" else act.TrainerLost)
    assert place.trainer.calls == (["apply"] if known == b"blob" else [])
