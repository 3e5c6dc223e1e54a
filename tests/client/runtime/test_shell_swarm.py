"""Whole clients around a real state machine, over the in-memory network on a jumping clock."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.log import choose
from trio.testing import MockClock

from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, Model, RunState
from psyche.telemetry import types
from psyche.telemetry.types import WeightSource
from psyche.testing.builders import build_config, build_model
from psyche.testing.dummy_trainer import DummyTrainer, build_weights
from psyche.testing.swarm import Member, Swarm, open_swarm
from psyche.wire.crypto import compute_state_digest
from psyche.wire.trainer import LoadRequest

LIMIT_S = 3_000


def build_quick(clients: int = 3, *, train_s: float = 0.5, **config: Any) -> dict[str, Any]:
    values = {"init_min_clients": clients, "min_clients": 2, "total_steps": 9, "rounds_per_epoch": 4} | config
    return {"config": build_config(**values), "make_trainer": lambda _: DummyTrainer(train_s=train_s)}


@asynccontextmanager
async def finishing(clients: int, folder: Path, **options: Any) -> AsyncIterator[Swarm]:
    """A swarm to prepare; then it runs to the end of its run, and all must hold the certified weights."""
    delays = options.pop("delays", None)
    with trio.fail_after(LIMIT_S):
        async with open_swarm(clients, folder, **options) as swarm:
            yield swarm
            assert await swarm.run(delays=delays) == [0] * clients
    assert swarm.coordinator.state.run_state is RunState.FINISHED
    assert {m.digest for m in swarm.members} == {swarm.coordinator.state.certified.digest}


def get_events(member: Member) -> list[types.Event]:
    return [entry.event for entry in member.events.drain()]


def get_sources(swarm: Swarm, load: int = 0) -> list[WeightSource]:
    """Where each member has loaded from in its load of this number."""
    return [choose(get_events(member), types.ModelLoaded)[load].source for member in swarm.members]


async def compute_first_weights(folder: Path) -> bytes:
    """The digest of the weights that dummy trainers load from a model folder."""
    model = build_model()
    request = LoadRequest(path=str(folder), is_snapshot=False, model=model, micro_batch_size=1)
    return compute_state_digest(ZERO32, (await DummyTrainer().load(request)).weight_root)


@pytest.mark.parametrize(("clients", "without", "is_on_record"), [(3, 2, True), (4, 1, False)])
async def test_clients_without_the_model_folder_fetch_the_first_weights_from_members(
    autojump_clock: MockClock, tmp_path: Path, clients: int, without: int, is_on_record: bool
) -> None:
    """S11: of weights on record one member suffices; otherwise a quorum has to show them."""
    options = build_quick(clients, min_clients=clients, total_steps=5)
    first = await compute_first_weights(tmp_path / "model") if is_on_record else ZERO32
    async with finishing(clients, tmp_path, first_weights=first, **options) as swarm:
        for member in swarm.members[:without]:
            member.shell._loader._local_root = tmp_path / "nowhere"
    peers, own = WeightSource.PEERS, WeightSource.CONFIGURED
    assert get_sources(swarm) == [peers] * without + [own] * (clients - without)


async def test_a_model_folder_that_is_not_the_one_on_record_is_not_used(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """S11: the client with other files says which, and takes the run's from the others."""
    first = await compute_first_weights(tmp_path / "model")
    (tmp_path / "elsewhere" / "model").mkdir(parents=True)
    (tmp_path / "elsewhere" / "model" / "config.json").write_text('{"changed": true}')
    options = build_quick(min_clients=3, total_steps=5)
    async with finishing(3, tmp_path, first_weights=first, **options) as swarm:
        swarm.members[1].shell._loader._local_root = tmp_path / "elsewhere"
    seen = get_events(swarm.members[1])
    assert choose(seen, types.ModelLoaded)[0].source is WeightSource.PEERS
    assert [event.files for event in choose(seen, types.ModelFilesDiffer)] == ["config.json (different content)"]


@pytest.mark.whole
async def test_a_newcomer_whose_line_is_too_slow_for_warmup_fetches_ahead_and_is_admitted(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """T8: it takes 8 s, of which Warmup has 5 s. In Cooldown it begins with the weights of the next epoch."""
    fetch_s = 8.0
    options = build_quick(2, total_steps=40, warmup_time=10, cooldown_time=5)
    async with finishing(3, tmp_path, delays={2: 12.0}, **options) as swarm:
        late = swarm.members[2]
        late.shell._loader._local_root = tmp_path / "nowhere"
        fetch_many = late.network.fetch_many

        async def fetch_slowly(*arguments: Any, **more: Any) -> dict[bytes, Path]:
            await trio.sleep(fetch_s)
            return await fetch_many(*arguments, **more)

        late.network.fetch_many = fetch_slowly  # type: ignore[method-assign]
    events = get_events(late)
    assert choose(events, types.Dropped), "its first Warmup was too short"
    assert choose(events, types.Trained), "it was admitted later"
    assert swarm.coordinator.state.registry.slots[2].proven


def build_model_of(*, one_bit: bool) -> Model:
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    model.optimizer.quantize_1bit = one_bit
    return model


async def test_in_full_value_mode_every_epoch_goes_on_from_one_members_copy(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    trainers = [DummyTrainer(train_s=0.5, one_bit=False, drift=number) for number in range(3)]
    options = build_quick() | {"model": build_model_of(one_bit=False), "make_trainer": trainers.__getitem__}
    async with finishing(3, tmp_path, **options) as swarm:
        pass
    assert sorted(get_sources(swarm, load=1)) == [WeightSource.OWN_SNAPSHOT, WeightSource.PEERS, WeightSource.PEERS]


@pytest.mark.whole
@pytest.mark.parametrize(("is_helped", "overlap"), [(True, True), (True, False), (False, True)])
async def test_a_client_that_lost_a_set_of_its_replay_store_takes_the_agreed_weights_from_others(
    autojump_clock: MockClock, tmp_path: Path, is_helped: bool, overlap: bool
) -> None:
    """S7: with real shells, snapshots and blobs, and without leaving the epoch, if only somebody gives them."""
    trainers = [DummyTrainer(train_s=0.5) for _ in range(4)]
    options = build_quick(4, total_steps=17, rounds_per_epoch=8, overlap=overlap, round_witness_time=8)

    async def sabotage() -> None:
        for member in swarm.members if not is_helped else ():
            member.engine.on_weights_wanted = lambda *_: (False, [])  # type: ignore[method-assign]
        await swarm.coordinator.wait_until(lambda state: state.progress.epoch == 1 and state.current.height == 3)
        shutil.rmtree(swarm.members[2].settings.data_dir / "replay" / "epoch-00001")
        trainers[2].weights = build_weights("a flipped bit")

    async with (
        trio.open_nursery() as nursery,
        finishing(4, tmp_path, **options | {"make_trainer": trainers.__getitem__}) as swarm,
    ):
        nursery.start_soon(sabotage)
    assert {slot.strikes for slot in swarm.coordinator.state.registry.slots} == {0}
    events = get_events(swarm.members[2])
    seen = [type(event) for event in events]
    assert types.Diverged in seen
    left = choose(events, types.LeftEpoch)
    if is_helped:
        assert seen.count(types.Compared) == seen.count(types.Healed) == 1
        assert left == choose(events, types.Dropped) == []
    else:
        assert [one.cause for one in left] == [types.LeaveCause.WRONG_WEIGHTS]
        assert "no peer showed the agreed weights in time" in left[0].reason


async def test_a_round_that_nobody_saw_in_time_holds_up_the_next_one_for_nobody(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The others of a round are awaited as long as they took in the one before, unless nobody trained in that."""
    begun: dict[int, float] = {}
    options = build_quick(train_s=0.4, total_steps=13, rounds_per_epoch=12, max_round_train_time=10)
    async with finishing(3, tmp_path, **options) as swarm:
        show = swarm.coordinator.show

        def show_late() -> Coordinator:
            state = swarm.coordinator.state
            begun.setdefault(state.current.height, trio.current_time())
            is_hidden = state.run_state is RunState.ROUND_TRAIN and state.current.height == 4
            return swarm.coordinator._shown if is_hidden and swarm.coordinator._shown else show()

        swarm.coordinator.show = show_late  # type: ignore[method-assign]
    assert begun[5] - begun[4] > 8.0, "the round that was not seen"
    assert begun[6] - begun[5] < 5.0


@pytest.mark.parametrize("one_bit", [True, False])
async def test_who_starts_from_another_config_is_out_is_told_the_file_and_goes_on_with_the_runs_own(
    autojump_clock: MockClock, tmp_path: Path, one_bit: bool
) -> None:
    """S2, S8, S9: the weights are the same; what a quorum shows in the first Warmup decides for the files too."""
    trainers = [DummyTrainer(train_s=0.5, one_bit=one_bit) for _ in range(3)]
    options = build_quick() | {"model": build_model_of(one_bit=one_bit), "make_trainer": trainers.__getitem__}
    for root, text in ((tmp_path, "{}"), (tmp_path / "other", '{"rms_norm_eps": 1000}')):
        (root / "model").mkdir(parents=True)
        (root / "model" / "config.json").write_text(text)
    async with finishing(3, tmp_path, **options) as swarm:
        odd = swarm.members[2]
        odd.shell._loader._local_root = tmp_path / "other"
    assert [dict(trainer.files) for trainer in trainers] == [{"config.json": b"{}"}] * 3
    events = get_events(odd)
    (told, *_) = choose(events, types.ModelFilesDiffer)
    assert (told.path, told.files) == (str(tmp_path / "other" / "model"), "config.json (different content)")
    before = [type(event) for event in events[: events.index(told)]]
    assert types.Dropped in before, "it took part in no round before"
    assert types.ResultSent not in before
    assert (tmp_path / "other" / "model" / "config.json").read_text() == '{"rms_norm_eps": 1000}'


async def test_a_client_keeps_each_update_that_it_sees_and_the_plan_that_they_are_read_by(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with finishing(3, tmp_path, **build_quick()) as swarm:
        for member, kept in zip(swarm.members, ("all", "own", "own"), strict=True):
            member.settings.distro_dir, member.settings.write_gradients = member.settings.data_dir / "updates", kept
    every, own, _ = ([path.name for path in (m.settings.data_dir / "updates").iterdir()] for m in swarm.members)
    assert "plan.bin" in every
    assert "plan.bin" in own
    assert not [name for name in own if "member" in name]
    seen = choose(get_events(swarm.members[0]), types.PayloadReceived)
    assert len([name for name in every if "member" in name]) == len(seen) >= 8
