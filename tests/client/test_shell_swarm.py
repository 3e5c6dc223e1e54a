"""Whole clients around a real state machine, over the in-memory network on a jumping clock."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from psyche.core.state import RunState
from psyche.testing.builders import build_config
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import open_swarm

LIMIT_S = 3_000


@pytest.mark.parametrize("overlap", [True, False])
async def test_three_clients_finish_a_run_and_hold_the_same_weights(
    autojump_clock: MockClock, tmp_path: Path, overlap: bool
) -> None:
    config = build_config(init_min_clients=3, min_clients=2, total_steps=9, rounds_per_epoch=4, overlap=overlap)
    with trio.fail_after(LIMIT_S):
        async with open_swarm(3, tmp_path, config=config, make_trainer=lambda _: DummyTrainer(train_s=0.5)) as swarm:
            codes = await swarm.run()
    assert codes == [0, 0, 0]
    assert swarm.coordinator.state.run_state is RunState.FINISHED
    certified = swarm.coordinator.state.certified.digest
    assert {m.digest for m in swarm.members} == {certified}
