"""A server that was killed and comes back moves its clocks (K2); to its clients the epoch goes on."""

import pytest
from kits.world import build_world

from psyche.core.state.messages import Recover
from psyche.core.state.state import RunState
from psyche.telemetry import types

MOMENTS = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.COOLDOWN)  # RoundWitness takes no time in a quiet round


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda state: state.name.lower())
def test_a_server_that_comes_back_costs_no_epoch_and_no_membership(moment: RunState, overlap: bool) -> None:
    world = build_world(3, total_steps=13, rounds_per_epoch=4, overlap=overlap)
    height = 2 if moment is RunState.ROUND_TRAIN else 0
    world.run_until(
        lambda: (
            world.state.run_state is moment and world.state.progress.epoch == 1 and world.state.current.height >= height
        )
    )
    world.apply(Recover(gap_s=40))
    world.push()
    world.run_to_end()
    world.assert_all_equal()
    for node in world.nodes:
        assert [f.index for f in node.get_logs(types.Member)].count(node.index) >= 3
        assert len([members for members in node.get_applied_sets().values() if members]) == 12
        assert not node.get_logs(types.LeftEpoch)
        assert not node.get_logs(types.EpochFailed)


def test_every_wait_that_is_named_is_ended_by_its_name() -> None:
    world = build_world(3, total_steps=13, rounds_per_epoch=4)
    world.run_to_end()
    for node in world.nodes:
        waiting: set[tuple[str, types.Wait]] = set()
        for event in node.events:
            match event:
                case types.WaitStarted():
                    waiting.add((event.what, event.wait))
                case types.WaitEnded():
                    waiting.remove((event.what, event.wait))
                case types.Finished():
                    assert not waiting
                case _:
                    pass
