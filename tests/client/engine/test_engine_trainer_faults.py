"""What becomes of a participant whose trainer fails (F20, F21) and of work that is given up (P3)."""

from kits.world import build_world

from psyche.client.engine import actions as act
from psyche.core.state.state import RunState
from psyche.telemetry import types
from psyche.wire.crypto import blake3_hash


def test_a_lost_trainer_leaves_the_epoch_and_comes_back_in_the_next() -> None:
    world = build_world(3, total_steps=25, rounds_per_epoch=6)
    victim = world.nodes[1]
    world.run_until(lambda: world.state.current.height == 2 and world.state.run_state is RunState.ROUND_TRAIN)
    victim.weights = blake3_hash(b"gone")
    victim.feed(act.TrainerLost("killed"))
    world.run_to_end()
    world.assert_all_equal()
    assert victim.get_logs(types.TrainerLost)
    assert types.LeaveCause.TRAINER_LOST in [f.cause for f in victim.get_logs(types.LeftEpoch)]
    assert len(victim.get_logs(types.ModelLoaded)) >= 2


def test_a_batch_that_fails_costs_nobody_else_anything() -> None:
    world = build_world(3)
    victim = world.nodes[0]
    broken = {"left": 2}
    train = victim.trained

    def fail_twice(action: act.Train) -> None:
        if broken["left"]:
            broken["left"] -= 1
            victim.feed(act.TrainFailed(action.epoch, action.height, "no data", trainer_lost=False))
        else:
            train(action)

    victim.trained = fail_twice  # type: ignore[method-assign]
    world.run_to_end()
    world.assert_all_equal()
    assert len(victim.get_logs(types.NotSent)) == 2


def test_an_epoch_without_agreement_is_reported_with_the_steps_it_cost() -> None:
    world = build_world(3, total_steps=13, rounds_per_epoch=4)
    world.run_until(lambda: world.state.progress.epoch == 1 and world.state.current.height == 2)
    for number, node in enumerate(world.nodes):
        node.weights = blake3_hash(b"split", bytes([number]))
    world.run_until(lambda: world.nodes[0].engine.state.progress.epoch == 2, limit_s=300)
    reports = world.nodes[0].get_logs(types.EpochFailed)
    assert reports
    assert reports[-1].steps_lost > 0
    world.run_to_end()
    world.assert_all_equal()
