"""A record that goes back: on a chain that was restored from an older ledger, members go on and sign nothing twice."""

import random

import pytest
from kits.tier import few
from kits.world import World, build_world

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.gossip import Result
from psyche.core.state.state import RunState
from psyche.telemetry import types
from psyche.wire.gossip import decode_gossip


def count_signed(world: World) -> list[int]:
    """How many results each member has signed, of every round the largest number."""
    found = []
    for node in world.nodes:
        by_round: dict[tuple[int, int], set[bytes]] = {}
        for message in map(decode_gossip, node.signed):
            if isinstance(message.body, Result):
                by_round.setdefault((message.epoch, message.height), set()).add(message.body.commitment)
        found.append(max(map(len, by_round.values())))
    return found


MOMENTS = {
    "Warmup": lambda state: state.run_state is RunState.WARMUP and state.progress.epoch == 1,
    "round": lambda state: state.in_round and state.progress.epoch == 0 and state.current.height == 1,
    "report": lambda state: state.in_round and state.current.height == 2 and len(state.current.witnesses) == 1,
    "epoch before": lambda state: state.in_round and state.progress.epoch == 0 and state.current.height == 2,
    "Cooldown": lambda state: state.run_state is RunState.COOLDOWN,
}
LATER = {
    "Warmup": lambda state: state.in_round and state.progress.epoch == 1 and state.current.height == 1,
    "round": lambda state: state.in_round and state.current.height == 3,
    "report": lambda state: state.in_round and state.current.height == 3,
    "epoch before": lambda state: state.in_round and state.progress.epoch == 1,
    "Cooldown": lambda state: state.run_state is RunState.WARMUP and state.progress.epoch == 1,
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_a_run_whose_record_goes_back_is_finished_with_equal_weights(moment: str, overlap: bool) -> None:
    world = build_world(3, overlap=overlap, rounds_per_epoch=5, total_steps=14)
    world.run_until(lambda: MOMENTS[moment](world.state))
    old = encode_state(world.state)
    world.run_until(lambda: LATER[moment](world.state))
    nonce = world.state.nonce
    world.state, world.shown = decode_state(old), None
    world.push()
    world.run_to_end()
    assert world.state.nonce > nonce
    world.assert_all_equal()
    assert count_signed(world) == [1, 1, 1], "a second result of a round would be evidence (R7)"
    for node in world.nodes:
        assert not node.get_logs(types.Equivocation)
        if moment != "epoch before":  # there a member does what it does after a restart: it leaves (M9)
            assert not [
                *node.get_logs(types.EpochFailed),
                *node.get_logs(types.Withdrew),
                *node.get_logs(types.Dropped),
            ]


@pytest.mark.parametrize("seed", few([7, 65, 295]))
def test_members_of_any_pace_go_on_with_a_record_that_goes_back_by_any_step(seed: int) -> None:
    """65: back into the first Warmup, where no weights are on record yet; 295: one has decided and not applied."""
    rng = random.Random(seed)
    overlap, clients = rng.random() < 0.5, rng.choice([2, 3, 3, 5])
    world = build_world(clients, overlap=overlap, rounds_per_epoch=rng.choice([3, 5, 12]), total_steps=20)
    for node in world.nodes:
        node.pace.train_s, node.pace.gossip_s = rng.choice([0.1, 0.4, 1.5, 3]), rng.choice([0.01, 0.3, 1])
        node.pace.fetch_s, node.pace.apply_s = rng.choice([0.02, 0.5, 1.5]), rng.choice([0.05, 0.5])
    history = [encode_state(world.state)]
    steps = rng.randint(20, 140)

    def note() -> bool:
        if decode_state(history[-1]).nonce != world.state.nonce:
            history.append(encode_state(world.state))
        return len(history) >= steps or world.state.run_state is RunState.FINISHED

    world.run_until(note)
    back = rng.randint(1, min(len(history) - 1, rng.choice([2, 6, 15, 40])))
    world.state, world.shown = decode_state(history[-1 - back]), None
    world.push()
    world.run_to_end(5000)
    world.assert_all_equal()
    assert max(count_signed(world)) == 1, "a second result of a round would be evidence (R7)"
