"""A record that goes back: on a chain that was restored from an older ledger, members go on and sign nothing twice."""

import pytest
from kits.world import World, build_world

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.gossip import Result
from psyche.core.state.state import RunState
from psyche.telemetry import kinds
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
        assert not node.get_logs(kinds.Equivocation)
        if moment != "epoch before":  # there a member does what it does after a restart: it leaves (M9)
            assert not [
                *node.get_logs(kinds.EpochFailed),
                *node.get_logs(kinds.Withdrew),
                *node.get_logs(kinds.Dropped),
            ]
