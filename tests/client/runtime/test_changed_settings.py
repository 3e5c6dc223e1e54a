"""P4, P9: what an owner changes of a paused run is what its clients train with after the resume."""

from dataclasses import replace
from pathlib import Path

import trio
from trio.testing import MockClock

from psyche.core.state.messages import Pause, Resume, Update
from psyche.core.state.state import Checkpoint, CheckpointKind, RunState
from psyche.testing.builders import build_config, build_model
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import Swarm, open_swarm
from psyche.wire.trainer import LoadReply, LoadRequest, TrainReply, TrainRequest

LIMIT_S = 3_000


class WatchedTrainer(DummyTrainer):
    def __init__(self, train_s: float) -> None:
        super().__init__(train_s)
        self.asked: list[LoadRequest | TrainRequest] = []

    async def load(self, request: LoadRequest) -> LoadReply:
        self.asked.append(request)
        return await super().load(request)

    async def train(self, request: TrainRequest) -> TrainReply:
        self.asked.append(request)
        return await super().train(request)

    def get_settings(self, *, resumed: bool, last_step: int) -> tuple[set[float], set[int], set[float | None]]:
        """The rates, samples and weight decays it has trained with before the pause or after it."""
        trains = [one for one in self.asked if isinstance(one, TrainRequest) and (one.step > last_step) == resumed]
        before = self.asked[: self.asked.index(trains[-1])]
        loads = [one for one in before if isinstance(one, LoadRequest)]
        decays = {loads[-1].model.optimizer.weight_decay}
        return {round(one.lr, 9) for one in trains}, {one.samples for one in trains}, decays


async def change_midway(swarm: Swarm, steps: list[int]) -> None:
    coordinator = swarm.coordinator
    await coordinator.wait_until(lambda state: state.progress.step >= 4 and state.in_round)
    coordinator.apply(Pause())
    await coordinator.wait_until(lambda state: state.run_state is RunState.PAUSED)
    state = coordinator.state
    steps.append(state.progress.step - 1)
    config = replace(state.config, global_batch_size_start=24, global_batch_size_end=24, total_steps=12)
    schedule = replace(state.model.lr_schedule, base_lr=5e-4)
    optimizer = replace(state.model.optimizer, weight_decay=0.5)
    coordinator.apply(Update(config=config, model=replace(state.model, lr_schedule=schedule, optimizer=optimizer)))
    await trio.sleep(30)
    coordinator.apply(Resume())


async def test_p9_after_an_update_all_members_train_with_the_new_settings_and_hold_the_same_weights(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    config = build_config(init_min_clients=3, min_clients=2, total_steps=9, rounds_per_epoch=20)
    model = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "model"))
    trainers = [WatchedTrainer(train_s=0.5) for _ in range(3)]
    steps: list[int] = []
    with trio.fail_after(LIMIT_S):
        opened = open_swarm(3, tmp_path, config=config, model=model, make_trainer=trainers.__getitem__)
        async with opened as swarm, trio.open_nursery() as nursery:
            nursery.start_soon(change_midway, swarm, steps)
            codes = await swarm.run()
    state = swarm.coordinator.state
    assert (codes, state.run_state, state.progress.step) == ([0, 0, 0], RunState.FINISHED, 12)
    assert {m.digest for m in swarm.members} == {state.certified.digest}
    for trainer in trainers:
        assert trainer.get_settings(resumed=False, last_step=steps[0]) == ({1e-3}, {4}, {None})
        assert trainer.get_settings(resumed=True, last_step=steps[0]) == ({5e-4}, {8}, {0.5})
