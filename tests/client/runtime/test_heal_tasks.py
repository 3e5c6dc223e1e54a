"""How the agreed weights are put together from own tensors and peers' (S7)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio
from runtime_kit import CHAIN, FILES, KEYS, Place, answer_with
from trio.testing import MockClock

from psyche.client.engine import actions as act
from psyche.client.runtime.weights.heal_tasks import HealTasks
from psyche.client.runtime.weights.loading import HEAL_FOLDER, Source
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.client.runtime.weights.serving import Offer
from psyche.core.encoding.manifest import TensorEntry, encode_manifest
from psyche.core.state.state import ZERO32, RunState
from psyche.durable import write_file
from psyche.modeling import snapshot as disk
from psyche.telemetry import types
from psyche.testing.builders import build_hash, build_model
from psyche.wire.crypto import blake3_hash, blob_id_of, compute_state_digest
from psyche.wire.ports import SyncReply, SyncRequest
from psyche.wire.trainer import LoadReply, LoadRequest, SnapshotReply, SnapshotRequest

RIGHT = (b"a" * 32, b"b" * 32, b"c" * 32)
FLIPPED = (b"a" * 32, b"X" * 32, b"c" * 32)
NAMES = ("first", "second", "third")


def get_entries(tensors: Sequence[bytes]) -> list[TensorEntry]:
    return [TensorEntry(name, (8,), blob_id_of(data)) for name, data in zip(NAMES, tensors, strict=True)]


def get_manifest(tensors: Sequence[bytes]) -> bytes:
    return encode_manifest(get_entries(tensors), FILES)


def get_root(tensors: Sequence[bytes]) -> bytes:
    return blake3_hash(get_manifest(tensors))


AGREED = compute_state_digest(CHAIN, get_root(RIGHT))
OWN = compute_state_digest(CHAIN, get_root(FLIPPED))


@dataclass
class Trainer:
    tensors: Sequence[bytes] = FLIPPED

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        info = disk.SnapshotInfo(
            path=Path(request.path), epoch=request.epoch, step=0, data_index=0, chain=request.chain,
            digest=request.digest, weight_root=get_root(self.tensors), plan=b"", prev_commitment=ZERO32, train_count=0,
            has_momentum=False, entries=tuple(get_entries(self.tensors)), files=FILES,
        )  # fmt: skip
        with disk.write_folder(info.path) as folder:
            (folder / disk.TENSORS_NAME).mkdir()
            for index, data in enumerate(self.tensors):
                write_file(disk.get_tensor_path(folder, index), data)
            write_file(folder / disk.MANIFEST_NAME, info.manifest)
            disk.write_model_files(folder / disk.MODEL_NAME, {"config.json": b"{}"})
            disk.write_info(folder, info, None)
        return SnapshotReply(path=request.path, size_bytes=96, weight_root=ZERO32, seconds=0.0)

    async def load(self, source: Source, *, keep_momentum: bool) -> LoadReply:
        request = LoadRequest(path=str(source.path), is_snapshot=True, model=build_model(), micro_batch_size=1)
        info = disk.read_snapshot_info(Path(request.path))
        self.tensors = [disk.get_tensor_path(info.path, index).read_bytes() for index in range(3)]
        return LoadReply(
            plan=b"", weight_root=get_root(self.tensors), parameters=24, vocab_size=256, numeric_class=0,
            device="dummy", chain=info.chain, train_count=0,
        )  # fmt: skip


class HealPlace(Place):
    """Heals from peers alone, with a trainer whose weights have a flipped bit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trainer = Trainer()
        self.state.run_state = RunState.ROUND_TRAIN
        self.network.blobs = {blob_id_of(data): data for data in (*RIGHT, b"{}")}
        replay = ReplayStore(self.root / "replay", 1 << 20)
        self.tasks = HealTasks(
            self.trainer, self.loader, replay, self, self.trainer.load, snapshots=self.snapshots  # type: ignore[arg-type]
        )  # fmt: skip

    async def wait_for_replay(self) -> None:
        await trio.lowlevel.checkpoint()

    def offer(self, tensors: Sequence[bytes] = RIGHT, chain: bytes = CHAIN) -> Offer:
        return Offer(manifest=get_manifest(tensors), chain=chain, epoch=0, step=3, data_index=30)


@pytest.fixture
def place(tmp_path: Path) -> HealPlace:
    return HealPlace(tmp_path)


COMPARE = act.Compare(0, 3, AGREED, OWN, CHAIN, (KEYS[1], KEYS[2]), 60.0)


async def test_only_the_tensors_that_differ_are_fetched(place: HealPlace) -> None:
    """S7: hashes are compared tensor by tensor."""
    place.network.answers = {KEYS[1]: answer_with(place.offer())}
    event = await place.tasks.do(COMPARE)
    assert event == act.Healed(0, 3, CHAIN, {3: AGREED}, {3: True})
    assert tuple(place.trainer.tensors) == RIGHT
    assert place.network.fetched == [blob_id_of(RIGHT[1])]
    assert place.network.sources == [KEYS[1], KEYS[2]]
    assert types.Compared(height=3, tensors=3, differing=1) in place.log.told


async def test_weights_that_are_lost_are_fetched_whole(place: HealPlace) -> None:
    place.network.answers = {KEYS[1]: answer_with(place.offer())}
    event = await place.tasks.do(replace(COMPARE, own=ZERO32, chain=ZERO32))
    assert isinstance(event, act.Healed)
    assert event.chain == CHAIN, "a peer's, for the agreed digest covers it (S9)"
    assert sorted(place.network.fetched) == sorted(map(blob_id_of, (*RIGHT, b"{}")))


async def test_a_copy_that_is_still_being_written_is_waited_for(place: HealPlace, autojump_clock: MockClock) -> None:
    nothing, offer = SyncReply(found=False), answer_with(place.offer())(SyncRequest("manifest"))
    answers = iter([nothing, nothing, offer])
    place.network.answers = {KEYS[1]: lambda _request: next(answers)}
    assert isinstance(await place.tasks.do(COMPARE), act.Healed)


@pytest.mark.parametrize("why", ["time is up", "the epoch ends", "the next epoch"])
async def test_peers_that_show_nothing_are_not_waited_for_any_longer(
    place: HealPlace, autojump_clock: MockClock, why: str
) -> None:
    asked = []

    def answer(request: SyncRequest) -> SyncReply:
        asked.append(request)
        if len(asked) == 2 and why == "the epoch ends":
            place.state.run_state = RunState.COOLDOWN
        if len(asked) == 2 and why == "the next epoch":
            place.state.progress.epoch = 1
        return SyncReply(found=False)

    place.network.answers = {KEYS[1]: answer}
    event = await place.tasks.do(replace(COMPARE, deadline=trio.current_time() + 10.0))
    assert isinstance(event, act.HealFailed)
    assert "no peer showed the agreed weights of round 3" in event.reason
    assert event.weights_kept
    assert not event.contradicts
    assert {request.key for request in asked} == {AGREED}
    assert len(asked) == (11 if why == "time is up" else 2)


async def test_an_agreed_digest_of_other_sets_is_not_adopted(place: HealPlace) -> None:
    """S7, section 9: it contradicts what the record gave this client."""
    other = build_hash("other sets")
    place.network.answers = {KEYS[1]: answer_with(place.offer(chain=other))}
    agreed = compute_state_digest(other, get_root(RIGHT))
    event = await place.tasks.do(replace(COMPARE, agreed=agreed))
    assert isinstance(event, act.HealFailed)
    assert event.contradicts
    assert tuple(place.trainer.tensors) == FLIPPED


async def test_tensors_that_nobody_delivers_leave_the_own_weights_as_they_are(place: HealPlace) -> None:
    place.network.answers = {KEYS[1]: answer_with(place.offer())}
    del place.network.blobs[blob_id_of(RIGHT[1])]
    event = await place.tasks.do(COMPARE)
    assert isinstance(event, act.HealFailed)
    assert (event.reason, event.weights_kept) == ("nobody delivers", True)


async def test_a_comparison_leaves_nothing_on_disk(place: HealPlace) -> None:
    """Nor is it hindered by what one that was killed has left there."""
    left = place.snapshots / HEAL_FOLDER / "own"
    left.mkdir(parents=True)
    (left / "noise").write_bytes(b"noise")
    place.network.answers = {KEYS[1]: answer_with(place.offer())}
    assert isinstance(await place.tasks.do(COMPARE), act.Healed)
    assert list(place.snapshots.iterdir()) == []
