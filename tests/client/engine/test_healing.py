"""What a client does whose weights are not the agreed ones (S3 to S7)."""

import pytest
from healing_kit import WRONG, agree_on, build_bench_in_second_epoch, diverge, let_go
from kits.bench import Bench
from kits.results import build_train_reply

from psyche.client.engine import actions as act
from psyche.core.state.gossip import Ready, ReadyFlag
from psyche.core.state.messages import WarmupWitness, Withdraw, WitnessMessage
from psyche.core.state.state import ZERO32, WitnessFlag
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import blake3_hash


@pytest.fixture
def bench() -> Bench:
    return build_bench_in_second_epoch(2)


def build_healed(bench: Bench, digests: dict[int, bytes]) -> act.Healed:
    heal = bench.get_all(act.Heal)[-1]
    replayed = {h: digests[h] for h in range(heal.height + 1)}
    return act.Healed(heal.epoch, heal.height, bench.engine.weights.chain, replayed, dict.fromkeys(replayed, True))


def spoil(digests: dict[int, bytes], first: int) -> dict[int, bytes]:
    """As `digests`, with wrong ones from a height on."""
    return {h: blake3_hash(WRONG, d) if h >= first else d for h, d in digests.items()}


# --- S4


def test_a_client_in_the_minority_stops_training_at_once_and_replays_when_it_has_let_go(bench: Bench) -> None:
    """S4, S7."""
    diverge(bench)
    assert [(a.epoch, a.height) for a in bench.get_all(act.CancelTrain)] == [(1, 3)]
    assert bench.get_all(act.Heal) == []
    bench.show()
    assert len(bench.get_all(act.CancelTrain)) == 1
    let_go(bench)
    (heal,) = bench.get_all(act.Heal)
    assert (heal.epoch, heal.certified, heal.height) == (1, bench.state.certified.digest, 3)


def test_a_result_that_was_done_before_the_cut_is_not_announced(bench: Bench) -> None:
    """S4: its weights are wrong, and everybody would refuse it."""
    diverge(bench)
    announced = len(bench.get_all(act.Announce))
    bench.feed(act.Trained(1, 3, build_train_reply(), ZERO32))
    assert len(bench.get_all(act.Announce)) == announced
    assert bench.get_logs(types.NotSent)[-1].reason == "this client's digest is not the agreed one"


def test_a_diverged_witness_reports_what_it_holds_without_a_digest(bench: Bench) -> None:
    """S4: its bits count, for holding payloads does not depend on weights."""
    diverge(bench)
    let_go(bench)
    for member in (1, 2, 3):
        bench.hear(bench.build_finished(member))
    message = bench.get_all(WitnessMessage)[-1]
    assert message.height == 3
    assert message.flags == WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST
    assert message.held == 0b1111
    assert message.state_digest == ZERO32


# --- S7


def test_a_replay_that_agrees_heals_and_training_goes_on(bench: Bench) -> None:
    """S7, R8: with the momentum of the epoch's start, which knows of no results since."""
    digests = diverge(bench)
    let_go(bench)
    bench.feed(build_healed(bench, digests))
    assert [f.height for f in bench.get_logs(types.Healed)] == [3]
    assert not bench.engine.weights.is_diverged
    bench.manual = ()
    bench.forget()
    bench.settle()
    bench.show()
    assert [(a.height, a.decided) for a in bench.get_all(act.Train)] == [(4, ())]


def test_while_it_replays_a_client_says_that_it_is_there_and_applies_nothing(bench: Bench) -> None:
    """S7, A1."""
    diverge(bench)
    let_go(bench)
    bench.forget()
    bench.settle()
    bench.show()
    assert bench.state.current.height == 4
    bench.wait(1.0)
    bodies = [message.body for message in bench.get_said()]
    assert [b.flags for b in bodies if isinstance(b, Ready)] == [ReadyFlag.BEHIND | ReadyFlag.DIVERGED]
    assert bench.get_all(act.Apply) == []
    assert bench.get_all(act.Train) == []


def test_several_wrong_digests_seen_at_once_are_healed_before_anything_is_concluded() -> None:
    """S7: only a replay can contradict the record; wrong weights contradict it all the time."""
    bench = build_bench_in_second_epoch(5)
    let_go(bench)
    for round_ in bench.state.rounds:
        if round_.height in (2, 3, 4):
            round_.agreed_digest = blake3_hash(WRONG, b"%d" % round_.height)
    bench.engine.weights._checked.clear()
    bench.show()
    assert bench.engine.weights.is_diverged
    assert bench.get_logs(types.Evidence) == []
    assert bench.get_all(Withdraw) == []
    assert len(bench.get_all(act.Heal)) == 1


def test_a_replay_that_contradicts_the_record_twice_is_evidence_and_the_client_leaves() -> None:
    """S7, section 9: it does not adopt what its own replay calls wrong."""
    bench = build_bench_in_second_epoch(3)
    digests = diverge(bench)
    let_go(bench)
    bench.feed(build_healed(bench, spoil(digests, 3)))
    (evidence,) = bench.get_logs(types.Evidence)
    assert evidence.digests == spoil(digests, 3)
    (reason,) = bench.get_reasons(Withdraw)
    assert "contradicts" in reason
    bench.wait(10.0)
    assert len(bench.get_logs(types.Evidence)) == 1
    assert bench.engine.membership.weights_digest is None


def test_a_replay_that_contradicts_the_record_once_heals_nothing_and_is_tried_once_more() -> None:
    """S7: the last two must agree, not just any; those from before the mistake do."""
    bench = build_bench_in_second_epoch(3)
    digests = diverge(bench)
    let_go(bench)
    bench.feed(build_healed(bench, spoil(digests, 4)))
    assert bench.get_logs(types.Healed) == []
    assert bench.engine.weights.is_diverged
    assert bench.get_logs(types.Evidence) == []
    assert len(bench.get_all(act.Heal)) == 2
    bench.feed(build_healed(bench, spoil(digests, 4)))
    assert len(bench.get_logs(types.Evidence)) == 1


def test_divergences_that_healed_do_not_add_up_to_evidence(bench: Bench) -> None:
    for _ in range(3):
        digests = diverge(bench)
        let_go(bench)
        bench.feed(build_healed(bench, digests))
        assert not bench.engine.weights.is_diverged
        bench.manual = ()
        bench.settle()
        bench.show()
    assert len(bench.get_logs(types.Healed)) == 3
    assert bench.get_logs(types.Evidence) == []


def test_who_is_behind_and_wrong_leaves(bench: Bench) -> None:
    """S7: the store lacks what it has not fetched."""
    bench.manual = {act.Apply}
    bench.run_round()
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1], part=WRONG))
    bench.engine.chain.behind_rounds = 1
    agree_on(bench, WRONG)
    (reason,) = bench.get_reasons(Withdraw)
    assert reason.startswith("cannot heal")


def test_digests_of_the_last_epoch_are_not_held_against_the_next(bench: Bench) -> None:
    """A client that takes no part in an epoch has no digest in it."""
    bench.feed(act.TrainerLost("gone"))
    while bench.state.in_round:
        bench.close(1, 2, 3, state_digest=build_hash("epoch 1", bench.state.current.height))
    bench.pass_time(2)
    bench.state.config.init_min_clients = 3
    bench.join(1, 2, 3)
    bench.form()
    bench.show()
    bench.forget()
    for member, client in enumerate(bench.state.clients):
        digest = bench.state.certified.digest
        bench.apply(WarmupWitness(2, member, digest), client.p2p)
    bench.settle()
    for height in range(2):
        bench.show()
        bench.record(0, 1, 2, held=0, commitments={}, state_digest=build_hash("epoch 2", height))
        bench.settle()
    bench.show()
    assert (bench.state.progress.epoch, bench.state.current.height) == (2, 2)
    assert bench.get_logs(types.Diverged) == []
    assert bench.get_logs(types.Digest) == []
