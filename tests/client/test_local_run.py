"""Whole runs with local steps on an in-memory network: real engines and shells, trainers that take no time."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from kits.log import choose
from kits.results import build_train_reply
from trio.testing import MockClock

from psyche.client.engine import actions as act
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.trainer_tasks import TrainerTasks
from psyche.core.state.state import Checkpoint, CheckpointKind, Optimizer, OptimizerKind, RunState
from psyche.telemetry import types
from psyche.testing.builders import build_config, build_model, build_state
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import open_swarm
from psyche.wire.trainer import MergeRequest, TrainReply, TrainRequest

LIMIT_S = 3_600
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, inner_steps=2, merge_step=1, compression_topk=8, compression_chunk=16, value_bits=2,
    error_decay=0.95, outer_rate=1.0,
)  # fmt: skip


class Trainer(DummyTrainer):
    """It notes how many results each merge had."""

    def __init__(self, number: int) -> None:
        super().__init__(train_s=1.0 + number / 4, optimizer=OPTIMIZER)
        self.merges: list[int] = []

    async def merge(self, request: MergeRequest) -> TrainReply:
        self.merges.append(len(request.held))
        return await super().merge(request)


@pytest.mark.parametrize(("members", "overlap"), [(1, True), (2, True), (3, True), (3, False)])
async def test_a_run_with_local_steps_ends_with_equal_weights(
    members: int, overlap: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    del autojump_clock
    trainers = [Trainer(number) for number in range(members)]
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    model.optimizer = OPTIMIZER
    config = build_config(
        init_min_clients=members, min_clients=1, total_steps=13, rounds_per_epoch=6, overlap=overlap,
        global_batch_size_start=4 * members, global_batch_size_end=4 * members,
    )  # fmt: skip
    with trio.fail_after(LIMIT_S):
        async with open_swarm(
            members, tmp_path, config=config, model=model, make_trainer=trainers.__getitem__
        ) as swarm:
            codes = await swarm.run()
    assert codes == [0] * members
    assert swarm.coordinator.state.run_state is RunState.FINISHED
    assert {one.digest for one in swarm.members} == {swarm.coordinator.state.certified.digest}
    for trainer, member in zip(trainers, swarm.members, strict=True):
        assert trainer.complaints == []
        done = choose((entry.event for entry in member.events.drain()), types.InnerStepsDone)
        assert {event.inner_steps for event in done} == {2}
        assert all(not event.merged for event in done if not event.height or not overlap)
        merged = [len(event.merged) for event in done if event.height and overlap]
        assert trainer.merges == merged, "each merge is on record in a header"
        assert not overlap or max(merged) == members


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_member_at_a_third_of_the_others_speed_counts_with_the_inner_steps_that_it_has_done(
    overlap: bool, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """LS9: without it, its results would always come too late, and it would soon be put out (H2)."""
    del autojump_clock
    optimizer = replace(OPTIMIZER, inner_steps=8, merge_step=2)
    trainers = [DummyTrainer(train_s=train_s, optimizer=optimizer) for train_s in (16.0, 16.5, 17.0, 50.0)]
    applied: list[bool] = []
    trainers[3].on_outcome = lambda _epoch, _height, outcome: applied.append(outcome)
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    model.optimizer = optimizer
    config = build_config(
        init_min_clients=4, min_clients=1, total_steps=13, rounds_per_epoch=6, overlap=overlap, straggler_percent=150,
        max_round_train_time=120, global_batch_size_start=32, global_batch_size_end=32,
    )  # fmt: skip
    with trio.fail_after(LIMIT_S):
        async with open_swarm(4, tmp_path, config=config, model=model, make_trainer=trainers.__getitem__) as swarm:
            codes = await swarm.run()
    assert codes == [0] * 4
    assert {one.digest for one in swarm.members} == {swarm.coordinator.state.certified.digest}
    steps = [
        [event.inner_steps for event in choose((entry.event for entry in one.events.drain()), types.InnerStepsDone)]
        for one in swarm.members
    ]
    assert {*steps[0], *steps[1], *steps[2]} == {8}
    assert {*steps[3]} <= {2, 3}, "50 s for 8 steps, and the deadline is at 1.25 of the others' pace"
    assert len(applied) >= 8
    assert all(applied)


class Cut(Trainer):
    """It is cancelled once its first half is done."""

    cut: Callable[[], Awaitable[None]]

    async def train(self, request: TrainRequest) -> TrainReply:
        await self.cut()
        return build_train_reply(b"", waits_for_merge=True)


class Shell:
    """What the trainer's tasks ask of their client."""

    def __init__(self) -> None:
        self.state = build_state(build_config())
        self.events: list[act.EngineEvent] = []

    def feed(self, event: act.EngineEvent) -> None:
        self.events.append(event)

    def log(self, event: types.Event) -> None:
        del event

    def find_mergeable(self, epoch: int, height: int) -> list[act.Held]:
        raise AssertionError(f"nothing is merged in round {epoch}.{height}")

    def find(self, blobs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return blobs

    async def take(self, *_place: int) -> bytes:
        return bytes(4)


async def test_a_round_that_is_cancelled_between_its_two_calls_merges_nothing(tmp_path: Path) -> None:
    """A4."""
    shell, trainer = Shell(), Cut(0)
    tasks = TrainerTasks(
        trainer, None, None, shell, settings=ClientSettings(run_id="run", data_dir=tmp_path),  # type: ignore[arg-type]
        snapshots=tmp_path, payloads=shell, data=shell,  # type: ignore[arg-type]
    )  # fmt: skip
    trainer.cut = lambda: tasks.cancel(act.CancelTrain(0, 1))
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.run)
            tasks.put(act.Train(0, 1, 2, 0, 0, 1e-3, 0.0, (), in_flight=True, next_lr=1e-3))
            await tasks.wait_idle()
            nursery.cancel_scope.cancel()
    (event,) = shell.events
    assert isinstance(event, act.Trained)
    assert (event.reply.cancelled, event.merged, trainer.merges) == (True, 0, [])
