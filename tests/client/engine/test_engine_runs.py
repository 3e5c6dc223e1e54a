"""Whole runs of the real engine over the real core: the happy path, then what goes wrong."""

import pytest
from kits.world import Node, World, build_world

from psyche.client.engine import actions as act
from psyche.core.encoding.header import decode_header
from psyche.core.state.gossip import Result
from psyche.core.state.messages import Withdraw
from psyche.core.state.state import RunState
from psyche.telemetry import types
from psyche.wire.crypto import blake3_hash
from psyche.wire.gossip import decode_gossip


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_a_quiet_run_finishes_and_all_hold_the_same_weights(clients: int, overlap: bool) -> None:
    world = build_world(clients, overlap=overlap, min_clients=1)
    world.run_to_end()
    world.assert_all_equal()
    everyone = list(range(clients))
    for node in world.nodes:
        data_rounds = [members for members in node.get_applied_sets().values() if members]
        assert data_rounds == [everyone] * 6, "total_steps 7 is six rounds with data"
    assert not [r for r in world.refusals if r[0] == "WitnessMessage" and r[1] == "InvalidWitness"]


@pytest.mark.parametrize("overlap", [True, False])
def test_nobody_waits_for_a_timeout_in_a_quiet_run(overlap: bool) -> None:
    world = build_world(3, overlap=overlap)
    world.run_to_end()
    train = [(a, b) for a, b in zip(world.timeline, world.timeline[1:], strict=False) if a[3] == "ROUND_TRAIN"]
    assert train
    assert max(b[0] - a[0] for a, b in train) < 3.0


def test_a_killed_client_comes_back_and_ends_with_the_same_weights() -> None:
    world = build_world(3, total_steps=25, rounds_per_epoch=6)
    victim = world.nodes[1]
    world.run_until(lambda: world.state.run_state is RunState.ROUND_TRAIN and world.state.current.height == 2)
    victim.kill()
    world.run_until(lambda: world.state.current.height == 4)
    world.restart(victim)
    world.run_to_end()
    world.assert_all_equal()
    sources = [f.source for f in victim.get_logs(types.ModelLoaded)]
    assert sources[-1] in ("peers", "own snapshot", "configured source")


def test_when_all_are_killed_at_once_they_resume_from_their_snapshots() -> None:
    world = build_world(3, total_steps=25, rounds_per_epoch=4)
    world.run_until(lambda: world.state.progress.epoch == 2 and world.state.current.height == 1)
    for node in world.nodes:
        node.kill()
    world.run_until(lambda: world.state.run_state is RunState.WAITING_FOR_MEMBERS)
    step = world.state.progress.step
    for node in world.nodes:
        world.restart(node)
    world.run_to_end()
    world.assert_all_equal()
    assert step >= 1 + 2 * 4, "at most one epoch is lost (F4)"


def cut_for_two_rounds(world: World, flag: str) -> Node:
    victim = world.nodes[2]
    world.run_until(lambda: world.state.current.height == 3 and world.state.run_state is RunState.ROUND_TRAIN)
    setattr(victim.pace, flag, True)
    world.run_until(lambda: world.state.current.height == 5)
    setattr(victim.pace, flag, False)
    world.run_to_end()
    return victim


def test_a_client_cut_off_for_two_rounds_ends_with_the_same_weights() -> None:
    world = build_world(4, total_steps=13, rounds_per_epoch=12)
    cut_for_two_rounds(world, "gossip_cut")
    world.assert_all_equal()


def test_a_client_that_heard_nothing_for_two_rounds_decides_by_the_witnesses_lists() -> None:
    """C1: the root is on record, its own table does not give it: a witness's list does."""
    world = build_world(4, total_steps=13, rounds_per_epoch=12)
    victim = cut_for_two_rounds(world, "deaf")
    world.assert_all_equal()
    assert len(victim.get_logs(types.Member)) == 1, "it stayed a member all along"
    assert victim.get_applied_sets() == world.nodes[0].get_applied_sets()


def test_a_client_that_could_not_fetch_is_behind_and_catches_up_in_order() -> None:
    """C6: what is decided is never skipped."""
    world = build_world(4, total_steps=13, rounds_per_epoch=12)
    victim = cut_for_two_rounds(world, "fetch_cut")
    world.assert_all_equal()
    assert len(victim.get_logs(types.Member)) == 1, "it stayed a member all along"
    assert victim.get_applied_sets() == world.nodes[0].get_applied_sets()
    assert types.Wait.PAYLOADS in [f.wait for f in victim.get_logs(types.WaitStarted)]


def test_a_client_with_wrong_weights_stops_heals_and_goes_on() -> None:
    world = build_world(4, total_steps=17, rounds_per_epoch=8)
    victim = world.nodes[0]
    world.run_until(lambda: world.state.progress.epoch == 1 and world.state.current.height == 3)
    victim.weights = blake3_hash(b"a flipped bit")
    world.run_to_end()
    world.assert_all_equal()
    assert victim.get_logs(types.Diverged)
    assert victim.get_logs(types.Healed)


@pytest.mark.parametrize("moment", range(20))
def test_a_client_killed_right_after_announcing_never_signs_a_second_header(moment: int) -> None:
    world = build_world(3, total_steps=13, rounds_per_epoch=6)
    victim = world.nodes[moment % 3]
    world.run_until(lambda: len(victim.signed) == 1 + moment // 2)
    victim.kill()
    delay = world.now + 0.1 * moment
    world.run_until(lambda: world.now >= delay)
    world.restart(victim)
    world.run_to_end()
    seen: dict[tuple[int, int], set[bytes]] = {}
    for raw in victim.signed:
        message = decode_gossip(raw)
        assert isinstance(message.body, Result)
        seen.setdefault((message.epoch, message.height), set()).add(message.body.commitment)
    assert all(len(commitments) == 1 for commitments in seen.values())
    world.assert_all_equal()


def test_a_withheld_payload_delays_nobody_for_long_and_its_trainer_goes_without_credit() -> None:
    world = build_world(4, total_steps=13, rounds_per_epoch=12)
    cheat = world.nodes[3]
    cheat.pace.withhold = True
    world.run_until(lambda: world.state.current.height == 6)
    trains = [(a, b) for a, b in zip(world.timeline, world.timeline[1:], strict=False) if a[3] == "ROUND_TRAIN"]
    assert max(b[0] - a[0] for a, b in trains) < 5.0
    index = next(i for i, c in enumerate(world.state.clients) if c.p2p == cheat.identity.public)
    assert world.state.clients[index].credits == 0
    world.run_to_end()
    honest = world.nodes[:3]
    assert len({n.weights for n in honest}) == 1


def test_a_silent_member_is_not_awaited_after_the_straggler_bound() -> None:
    world = build_world(4, total_steps=13, rounds_per_epoch=12, min_clients=2)
    world.run_until(lambda: world.state.current.height == 2 and world.state.run_state is RunState.ROUND_TRAIN)
    world.nodes[3].kill()
    world.run_to_end()
    survivors = world.nodes[:3]
    assert len({n.weights for n in survivors}) == 1
    trains = [(a, b) for a, b in zip(world.timeline, world.timeline[1:], strict=False) if a[3] == "ROUND_TRAIN"]
    assert max(b[0] - a[0] for a, b in trains) < 10.0, "nobody waited for max_round_train_time"


def test_headers_chain_to_the_own_last_result() -> None:
    world = build_world(2, min_clients=2)
    world.run_to_end()
    for node in world.nodes:
        headers = [decode_header(m.body.header) for m in map(decode_gossip, node.signed) if isinstance(m.body, Result)]
        commitments = [m.body.commitment for m in map(decode_gossip, node.signed) if isinstance(m.body, Result)]
        assert [h.prev_commitment for h in headers[1:]] == commitments[:-1]


def test_stop_withdraws_and_exits_at_once() -> None:
    world = build_world(3)
    world.run_until(lambda: world.state.run_state is RunState.ROUND_TRAIN)
    node = world.nodes[0]
    actions = node.engine.on_stop("Ctrl-C")
    assert any(isinstance(a, act.Submit) and isinstance(a.message, Withdraw) for a in actions)
    assert any(isinstance(a, act.Exit) and a.code == 0 for a in actions)
    assert any(isinstance(a, act.Publish) for a in actions)


def test_a_round_in_which_nobody_trained_holds_up_the_next_one_for_nobody() -> None:
    world = build_world(3, total_steps=13, rounds_per_epoch=12)
    lost = {"round": 4}
    show = world.show

    def show_late(node: Node) -> None:
        """Nobody sees RoundTrain of one round before its time is over."""
        state = world.state
        if state.run_state is RunState.ROUND_TRAIN and state.current.height == lost["round"]:
            return
        show(node)

    world.show = show_late  # type: ignore[method-assign]
    world.run_until(lambda: world.state.current.height == 7)
    rounds = {
        a[2]: b[0] - a[0] for a, b in zip(world.timeline, world.timeline[1:], strict=False) if a[3] == "ROUND_TRAIN"
    }
    assert rounds[4] > 8.0, "the round that was not seen"
    assert rounds[5] < 5.0
    world.run_to_end()
    world.assert_all_equal()


def test_the_snapshot_of_the_last_drain_carries_the_fate_of_every_own_result() -> None:
    world = build_world(3)
    snapshots: list[act.WriteSnapshot] = []
    node = world.nodes[0]
    take = node.snapshot

    def note(action: act.WriteSnapshot) -> None:
        snapshots.append(action)
        take(action)

    node.snapshot = note  # type: ignore[method-assign]
    world.run_to_end()
    assert [(s.height, s.applied) for s in snapshots[0].decided[-2:]] == [(1, True), (2, True)]
