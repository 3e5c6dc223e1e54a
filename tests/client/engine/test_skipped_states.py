"""A client that sees some states of the record late or not at all (F8, C6)."""

from kits.bench import Bench, build_bench

from psyche.client.engine import actions as act
from psyche.core.state.bits import compute_bits
from psyche.core.state.messages import Withdraw, WitnessMessage
from psyche.core.state.state import RunState
from psyche.telemetry import types
from psyche.testing.builders import build_hash


def pass_round_without(bench: Bench) -> None:
    """The others go through a round of which this client hears nothing at all; they do not judge it late."""
    everyone = range(len(bench.identities))
    known = {m: build_hash("unseen", bench.state.current.height, m) for m in everyone}
    others = [m for m in everyone if m != bench.index]
    bench.close(*others, held=compute_bits(everyone), commitments=known, state_digest=b"\1" * 32)


def build_bench_in_round(height: int) -> Bench:
    bench = build_bench().start()
    bench.run_rounds(height)
    assert bench.state.current.height == height
    return bench


def test_results_that_wait_for_their_decision_are_kept_while_states_are_skipped() -> None:
    """Round 5 is seen, then 8: the record of round 5 is still there, and decides what was announced in round 4."""
    bench = build_bench_in_round(5)
    assert all(len(bench.get_known(m, 4)) == 1 for m in range(4))
    bench.play()
    bench.blind = True
    bench.close()
    for _ in range(2):
        pass_round_without(bench)
    assert bench.state.current.height == 8
    bench.blind = False
    bench.forget()
    bench.show()
    decided = {f.height: list(f.members) for f in bench.get_logs(types.Decided)}
    assert decided[4] == [0, 1, 2, 3]
    assert 6 in {f.height for f in bench.get_logs(types.Applied)}


def test_a_client_that_missed_the_record_of_a_decision_leaves_the_epoch_at_once() -> None:
    """C6: it can never apply that round, so it does not wait for three more to pass."""
    bench = build_bench_in_round(5)
    bench.play()
    bench.blind = True
    bench.close()
    for _ in range(3):
        pass_round_without(bench)
    assert bench.state.run_state is RunState.ROUND_TRAIN
    bench.blind = False
    bench.show()
    assert [a.member for a in bench.get_all(Withdraw)] == [bench.index]
    (left,) = bench.get_logs(types.LeftEpoch)[-1:]
    assert left.cause is types.LeaveCause.UNSEEN
    assert "round 5" in left.reason


def test_who_has_withdrawn_takes_no_further_part_although_the_record_does_not_show_it_yet() -> None:
    """M4: nothing is loaded, signed or sent twice while the withdrawal is on its way."""
    bench = build_bench_in_round(3)
    bench.feed(act.TrainerLost("gone"))
    assert len(bench.get_all(Withdraw)) == 1
    bench.forget()
    bench.show()
    bench.wait(5.0)
    for kind in (Withdraw, act.Load, act.Train, act.Publish, WitnessMessage, act.Apply):
        assert bench.get_all(kind) == []
    assert bench.engine.member is None


def test_payloads_of_a_set_that_is_not_applied_yet_are_not_dropped() -> None:
    """C6: a client that is behind needs what others may forget."""
    bench = build_bench_in_round(5)
    bench.manual = {act.Apply}
    for _ in range(3):
        bench.run_round(state_digest=b"\1" * 32)
    assert bench.engine.weights.next_height == 6
    assert max(a.height for a in bench.get_all(act.Expire)) == 4, "R(4) is applied at the start of round 6"
    assert bench.get_record(4).results


def test_payloads_of_the_last_epoch_are_dropped_when_the_next_begins() -> None:
    """I6: epochs of few rounds leave nothing behind."""
    bench = build_bench(rounds_per_epoch=1, cooldown_time=1).start()
    while bench.state.in_round:
        bench.run_round()
    bench.pass_time(2)
    bench.forget()
    bench.start()
    assert (0, 2**32 - 1) in [(a.epoch, a.height) for a in bench.get_all(act.Expire)]
