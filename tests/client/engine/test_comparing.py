"""A client that cannot replay compares its weights with those of peers (S7)."""

import pytest
from healing_kit import WRONG, agree_on, build_bench_in_second_epoch, diverge, let_go
from kits.bench import Bench

from psyche.client.engine import actions as act
from psyche.client.engine.healing import HELP_EVERY_HEIGHTS, HELPERS
from psyche.client.engine.weights import Divergence, Replaying
from psyche.core.state.gossip import Finished, Gossip, ReadyFlag, Result
from psyche.core.state.messages import Withdraw
from psyche.core.state.state import ZERO32, ClientState, RoundFlag, RunState
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import compute_state_digest

LACKS = "the replay store lacks the set of round 2"


@pytest.fixture
def bench() -> Bench:
    return build_bench_in_second_epoch(2)


def fail_to_replay(bench: Bench, *, weights_kept: bool = True) -> bytes:
    """Its own weights of round 3 are wrong and no replay can be made; the agreed digest of round 3."""
    agreed = diverge(bench)[3]
    let_go(bench)
    bench.forget()
    bench.feed(act.HealFailed(1, LACKS, weights_kept))
    return agreed


def promise(bench: Bench) -> list[int]:
    asked = [a for a in bench.get_all(act.AskWeights) if a.height == bench.state.current.height]
    for action in asked:
        bench.feed(act.WeightsPromised(action.epoch, action.height, action.member))
    return [action.member for action in asked]


def get_finished(bench: Bench) -> list[Gossip]:
    running = bench.state.current.height
    return [m for m in bench.get_said(Finished) if m.height == running]


def get_right_digest(bench: Bench) -> bytes:
    return compute_state_digest(bench.engine.weights.chain, bench.part)


# --- who heals


def test_a_replay_that_cannot_be_done_is_followed_by_a_comparison_with_the_own_weights(
    bench: Bench,
) -> None:
    """S7: of the round whose digest is agreed already, once somebody keeps a copy of it."""
    agreed = fail_to_replay(bench)
    own, chain = bench.engine.weights.digests[3], bench.engine.weights.chain
    asked = bench.get_all(act.AskWeights)
    assert [(a.epoch, a.height, a.member) for a in asked] == [(1, 3, 1), (1, 3, 2)]
    assert [a.key for a in asked] == [bench.get_identity(m).public for m in (1, 2)]
    assert len(asked) == HELPERS
    assert bench.get_all(act.Compare) == bench.get_all(Withdraw) == []
    promise(bench)
    (compare,) = bench.get_all(act.Compare)
    assert (compare.epoch, compare.height, compare.agreed) == (1, 3, agreed)
    assert (compare.own, compare.chain) == (own, chain)
    assert compare.helpers == tuple(bench.get_identity(m).public for m in (1, 2))[: len(compare.helpers)]
    limit = bench.state.config.max_round_train_time + bench.state.config.round_witness_time
    assert compare.deadline <= bench.now + limit


def test_a_comparison_is_named_as_what_is_waited_for_until_it_ends(bench: Bench) -> None:
    """Also when the round goes on to its next phase."""
    agreed = fail_to_replay(bench)
    promise(bench)
    for _ in range(2):
        bench.settle()
        bench.show()
        (wait,) = [w for w in bench.engine.waits() if (w.wait, w.height) == (types.Wait.AGREED_TENSORS, 3)]
        assert (wait.until, wait.then) == (bench.get_all(act.Compare)[0].deadline, "leave the epoch")
        bench.now += bench.state.config.max_round_train_time
    bench.feed(act.Healed(1, 3, bench.engine.weights.chain, {3: agreed}, {3: True}))
    assert not [w for w in bench.engine.waits() if w.wait is types.Wait.AGREED_TENSORS]


def test_weights_that_the_trainer_lost_are_fetched_whole(bench: Bench) -> None:
    fail_to_replay(bench, weights_kept=False)
    promise(bench)
    (compare,) = bench.get_all(act.Compare)
    assert compare.own == ZERO32


def test_while_it_compares_a_client_applies_nothing_and_keeps_what_it_will_apply(bench: Bench) -> None:
    """C6: the sets decided meanwhile are applied afterwards, in order."""
    agreed = fail_to_replay(bench)
    promise(bench)
    chain = bench.engine.weights.chain
    bench.settle()
    bench.show()
    assert bench.state.current.height == 4
    assert bench.get_all(act.Apply) == []
    assert bench.get_all(act.Train) == []
    bench.feed(act.Healed(1, 3, chain, {3: agreed}, {3: True}))
    assert [a.height for a in bench.get_all(act.Apply)] == [4]


def test_the_agreed_weights_heal_at_once_and_the_next_batch_is_trained(bench: Bench) -> None:
    """S7: they were checked against the record itself; a third late round would cost the place (H2)."""
    agreed = fail_to_replay(bench)
    promise(bench)
    bench.settle()
    bench.show()
    bench.manual = ()
    bench.feed(act.Healed(1, 3, bench.engine.weights.chain, {3: agreed}, {3: True}))
    assert [f.height for f in bench.get_logs(types.Healed)] == [3]
    assert not bench.engine.weights.is_diverged
    assert [(a.height, a.decided) for a in bench.get_all(act.Train)] == [(4, ())]


def test_who_is_about_to_be_right_again_does_not_say_that_it_has_nothing_to_give(bench: Bench) -> None:
    """A3: others would close the round without the batch that may still be trained in it."""
    fail_to_replay(bench)
    promise(bench)
    bench.settle()
    bench.show()
    assert bench.state.current.height == 4
    for member in (1, 2, 3):
        bench.hear(bench.build_finished(member))
    assert [m.height for m in get_finished(bench)] == []


def test_other_members_are_asked_where_the_first_ones_have_none_to_give(bench: Bench) -> None:
    fail_to_replay(bench)
    bench.wait(1.0)
    bench.wait(1.0)
    assert [a.member for a in bench.get_all(act.AskWeights)] == [1, 2, 3, 1, 2]
    assert bench.engine.get_deadline(bench.now) is not None


def test_members_that_are_not_right_themselves_are_not_asked(bench: Bench) -> None:
    diverge(bench)
    let_go(bench)
    bench.hear(bench.build_ready(1, WRONG, ReadyFlag.DIVERGED))
    bench.forget()
    bench.feed(act.HealFailed(1, LACKS, weights_kept=True))
    assert [a.member for a in bench.get_all(act.AskWeights)] == [2, 3]


def test_a_round_without_an_agreed_digest_is_followed_by_the_next_one(bench: Bench) -> None:
    """S5: then nothing says which weights are right; its own go on with the others' sets meanwhile."""
    agreed = diverge(bench)[3]
    let_go(bench)
    for member in (1, 2, 3):
        message = bench.build_result(member, base_digest=agreed)
        bench.hear(message)
        assert isinstance(message.body, Result)
        bench.feed(act.PayloadArrived(message.body.commitment))
    bench.pass_times()
    bench.show()
    bench.forget()
    bench.feed(act.HealFailed(1, LACKS, weights_kept=True))
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1], part=WRONG))
    assert [a.height for a in bench.get_all(act.AskWeights)] == [4, 4]
    promise(bench)
    for member in (1, 2, 3):  # they agree on the set, and each has other weights
        bench.record(member, state_digest=build_hash("own weights", member))
    bench.show()
    assert bench.state.current.flags & (RoundFlag.ROOT | RoundFlag.DIGEST) == RoundFlag.ROOT
    bench.pass_times()
    bench.show()
    assert bench.state.current.height == 5
    assert bench.get_all(act.Compare) == []
    (_, apply) = bench.get_all(act.Apply)
    assert (apply.height, len(apply.blobs)) == (5, 3)
    bench.feed(bench.build_applied(apply, part=WRONG))
    assert [a.height for a in bench.get_all(act.AskWeights) if a.height != 4] == [5, 5]
    promise(bench)
    agree_on(bench, get_right_digest(bench))
    assert [a.height for a in bench.get_all(act.Compare)] == [5]


@pytest.mark.parametrize("overlap", [True, False])
def test_a_comparison_that_takes_too_long_ends_with_leaving_before_lateness_costs_a_strike(overlap: bool) -> None:
    """H2, H5: the third late result is that of round 5; with overlap it is judged a round later."""
    bench = build_bench_in_second_epoch(2, overlap=overlap)
    fail_to_replay(bench)
    promise(bench)
    assert len(bench.get_all(act.Compare)) == 1
    bench.pass_times()
    for height in (4, 5):
        bench.show()
        assert bench.state.current.height == height
        assert bench.get_all(Withdraw) == []
        if height == 4 or overlap:
            known = {m: build_hash("result", height, m) for m in (1, 2, 3)}
            bench.record(1, 2, 3, held=0b1110, commitments=known, state_digest=build_hash("right", height))
            bench.settle()
    if not overlap:
        bench.now += bench.state.config.max_round_train_time
        bench.settle()
        assert (bench.state.current.height, bench.state.run_state) == (5, RunState.ROUND_WITNESS)
    bench.show()
    (reason,) = bench.get_reasons(Withdraw)
    assert "no peer showed the agreed weights in time" in reason
    assert bench.engine.member is None
    assert not bench.engine.weights.is_healing
    assert bench.state.clients[bench.index].late < 3


@pytest.mark.parametrize("contradicts", [False, True])
def test_a_comparison_that_fails_makes_the_client_leave(bench: Bench, contradicts: bool) -> None:
    """S7: with evidence, where the agreed digest is one of other sets than the record gave."""
    fail_to_replay(bench)
    promise(bench)
    bench.feed(act.HealFailed(1, "no helper has it", weights_kept=True, contradicts=contradicts))
    (reason,) = bench.get_reasons(Withdraw)
    assert "no helper has it" in reason
    assert len(bench.get_logs(types.Evidence)) == contradicts


def test_one_comparison_an_epoch_is_enough(bench: Bench) -> None:
    """S7: who diverges again at once has a trouble that others' weights do not cure."""
    agreed = fail_to_replay(bench)
    promise(bench)
    bench.settle()
    bench.show()
    bench.feed(act.Healed(1, 3, bench.engine.weights.chain, {3: agreed}, {3: True}))
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1], part=WRONG))
    agree_on(bench, get_right_digest(bench))
    let_go(bench)
    assert len(bench.get_all(act.Heal)) == 1
    bench.feed(act.HealFailed(1, LACKS, weights_kept=True))
    (reason,) = bench.get_reasons(Withdraw)
    assert LACKS in reason


@pytest.mark.parametrize("why", ["full values", "no digest over all weights soon"])
def test_what_cannot_be_compared_makes_the_client_leave_at_once(bench: Bench, why: str) -> None:
    """S2: full values differ anyway; a slice says nothing of the other weights."""
    if why == "full values":
        bench.state.model.optimizer.quantize_1bit = False
    else:
        bench.engine._x.facts.parameters = 200_000_000
    bench.show()
    fail_to_replay(bench)
    assert bench.get_all(act.AskWeights) == []
    (reason,) = bench.get_reasons(Withdraw)
    assert LACKS in reason


def test_a_large_model_is_compared_where_the_digest_is_over_all_weights(bench: Bench) -> None:
    """S2: heights divisible by 64, or none in this epoch."""
    bench.engine._x.facts.parameters = 200_000_000
    found = []
    for height in (1, 61, 62, 63, 64):
        bench.engine._x.state.current.height = height
        found.append(bench.engine.healing._can_compare(Replaying(Divergence(height))))
    assert found == [False, False, False, True, True]


# --- who helps


def test_a_member_in_need_gets_a_copy_of_the_running_rounds_weights(bench: Bench) -> None:
    key = bench.get_identity(1).public
    promised, (snapshot,) = bench.engine.on_weights_wanted(key, 1, 2)
    assert promised
    assert isinstance(snapshot, act.WriteSnapshot)
    weights = bench.engine.weights
    assert (snapshot.epoch, snapshot.height) == (1, 2)
    assert (snapshot.digest, snapshot.chain) == (weights.digests[2], weights.chains[2])
    assert bench.engine.on_weights_wanted(key, 1, 2) == (True, []), "one copy serves all who ask"


@pytest.mark.parametrize(
    "why", ["stranger", "other round", "moved on", "diverged", "no full digest", "dropped", "drain"]
)
def test_no_copy_is_kept_for_who_has_no_right_to_it_or_where_there_is_none(bench: Bench, why: str) -> None:
    key = bench.get_identity(1).public
    state = bench.engine._x.state
    height = 2
    match why:
        case "stranger":
            key = b"\1" * 32
        case "other round":
            height = 1
        case "moved on":
            bench.engine.weights.next_height = 4
        case "diverged":
            bench.spoil_weights()
        case "no full digest":
            bench.engine.weights.full[2] = False
        case "dropped":
            state.clients[1].state = ClientState.DROPPED
        case "drain":
            state.epoch.drain_from_height = 1
    assert bench.engine.on_weights_wanted(key, 1, height) == (False, [])


def test_copies_are_not_made_every_round_whoever_asks(bench: Bench) -> None:
    """A copy costs the trainer a moment: one who always asks must not slow everybody down."""
    first = None
    for height in range(2, 8):
        promised, _ = bench.engine.on_weights_wanted(bench.get_identity(1).public, 1, height)
        assert promised == (first is None)
        first = height if first is None else first
        bench.run_round()
    assert HELP_EVERY_HEIGHTS > 8
