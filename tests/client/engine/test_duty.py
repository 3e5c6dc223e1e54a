"""A member's own work: training, drain rounds, snapshots, roles (A4, P1, P2, P6, R1, W1)."""

import pytest
from kits.bench import Bench, build_bench, go_to_last_drain
from kits.results import build_train_reply

from psyche.client.engine import actions as act
from psyche.client.engine.context import describe_awaited
from psyche.client.engine.records import PayloadStatus
from psyche.core.committee.elections import get_roles
from psyche.core.committee.schedule import get_lr_bits
from psyche.core.encoding.header import decode_header
from psyche.core.state.gossip import Finished, Result
from psyche.core.state.messages import Withdraw, WitnessMessage
from psyche.core.state.state import ZERO32, Lookahead, Role, RunState, WitnessFlag
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.wire.crypto import blob_id_of
from psyche.wire.gossip import decode_gossip


@pytest.fixture
def bench() -> Bench:
    return build_bench(4).start()


def get_headers(bench: Bench) -> list[tuple[int, object]]:
    return [(m.height, decode_header(m.body.header)) for m in bench.get_announced() if isinstance(m.body, Result)]


def get_reasons(bench: Bench) -> list[object]:
    return [f.reason for f in bench.get_logs(types.NotSent)]


# --- R1: what is announced


def test_a_header_says_everything_of_a_result(bench: Bench) -> None:
    """R1."""
    bench.run_round()
    first = bench.get_announced()[0]
    body = b"what training gave"
    bench.train(payload=body, train_count=7)
    announce = bench.get_all(act.Announce)[-1]
    header = decode_header(decode_gossip(announce.raw).body.header)  # type: ignore[union-attr]
    asked = bench.get_all(act.Train)[-1]
    assert isinstance(first.body, Result)
    assert (header.epoch, header.height, header.member, header.step) == (0, 1, 0, asked.step)
    assert (header.batch_start, header.batch_end) == (asked.start, asked.end)
    assert header.lr_bits == get_lr_bits(asked.lr)
    assert header.prev_commitment == first.body.commitment
    assert header.base_digest == bench.engine.weights.digests[1]
    assert (header.body_hash, header.body_len, header.train_count) == (blob_id_of(body), len(body), 7)
    assert header.trainer_key == bench.identities[0].public
    assert (announce.body, announce.epoch, announce.height) == (body, 0, 1)


def test_data_is_asked_for_when_the_round_is_seen_and_training_waits_for_the_digest() -> None:
    bench = build_bench(4, manual={act.Apply}).start()
    (data,) = bench.get_all(act.FetchData)
    batch = bench.get_record().assignments[0]
    assert (data.epoch, data.height, data.start, data.end) == (0, 0, *batch)
    assert bench.get_all(act.Train) == []
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1]))
    (train,) = bench.get_all(act.Train)
    assert (train.start, train.end) == batch
    assert (train.lookahead_lr, train.in_flight) == (0.0, True), "at height 0 nothing is in flight"


@pytest.mark.parametrize("overlap", [True, False])
def test_the_look_ahead_uses_the_rate_of_the_round_before_and_only_with_overlap(overlap: bool) -> None:
    bench = build_bench(4, overlap=overlap).start()
    bench.run_round()
    train = bench.get_all(act.Train)[-1]
    assert train.height == 1
    assert (train.lookahead_lr > 0, train.in_flight) == (overlap, overlap)


@pytest.mark.parametrize("overlap", [True, False])
def test_v4_a_look_ahead_along_the_own_result_gets_the_one_in_flight(overlap: bool) -> None:
    bench = build_bench(4, overlap=overlap)
    bench.state.model.optimizer.lookahead = Lookahead.OWN
    bench.start()
    assert bench.get_all(act.Train)[-1].blobs == (), "at height 0 nothing is in flight"
    bench.run_round()
    own = bench.get_known(0, 0)[0].header.body_hash
    assert bench.get_all(act.Train)[-1].blobs == (own,) * overlap


# --- A4


def test_round_witness_does_not_cut_a_training_and_the_next_round_does(bench: Bench) -> None:
    """A4."""
    bench.pass_time(bench.state.config.max_round_train_time)
    assert bench.state.run_state is RunState.ROUND_WITNESS
    assert bench.get_all(act.CancelTrain) == []
    bench.close(1, 2, 3)
    assert [(a.epoch, a.height) for a in bench.get_all(act.CancelTrain)] == [(0, 0)]
    started = len(bench.get_all(act.Train))
    bench.feed(act.Trained(0, 0, build_train_reply(b"", cancelled=True), ZERO32))
    assert [a.height for a in bench.get_all(act.Train)[started:]] == [1]
    assert get_reasons(bench) == ["its round ended before this client had trained its samples"]


def test_a_batch_that_ends_after_its_round_counts_as_not_applied(bench: Bench) -> None:
    """A4, R8."""
    bench.close(1, 2, 3)
    bench.feed(act.Trained(0, 0, build_train_reply(), ZERO32))
    assert get_headers(bench) == []
    assert get_reasons(bench) == ["trained too late: the round was over"]
    assert [(s.height, s.applied) for s in bench.get_all(act.Train)[-1].decided] == [(0, False)]


def test_a_result_that_is_done_in_round_witness_is_still_announced(bench: Bench) -> None:
    """A4: with overlap its payload has a round more."""
    bench.pass_time(bench.state.config.max_round_train_time)
    bench.train()
    assert [height for height, _ in get_headers(bench)] == [0]


def test_training_is_cut_when_the_epoch_ends_early(bench: Bench) -> None:
    """S5: Cooldown comes straight after two rounds without a digest; no round needs the batch any more."""
    bench.split()
    assert [(a.epoch, a.height) for a in bench.get_all(act.CancelTrain)] == [(0, 0)]
    bench.feed(act.Trained(0, 0, build_train_reply(b"", cancelled=True), ZERO32))
    bench.split()
    assert bench.state.run_state is RunState.COOLDOWN
    assert [(a.epoch, a.height) for a in bench.get_all(act.CancelTrain)] == [(0, 0), (0, 1)]
    bench.show()
    assert len(bench.get_all(act.CancelTrain)) == 2


@pytest.mark.parametrize("reply", [{"refused": "non-finite gradient"}, {"cancelled": True}])
def test_who_has_nothing_to_announce_is_done_all_the_same(bench: Bench, reply: dict[str, object]) -> None:
    """A2: the others do not wait for it."""
    bench.train(payload=b"", **reply)
    assert type(bench.get_said()[-1].body) is Finished


def test_a_batch_without_data_is_said_and_the_round_goes_on(bench: Bench) -> None:
    """F22."""
    bench.feed(act.TrainFailed(0, 0, "data: the server does not answer", trainer_lost=False))
    assert get_reasons(bench) == ["data: the server does not answer"]
    assert bench.get_all(Withdraw) == []
    bench.close(1, 2, 3)
    assert bench.get_all(act.Train)[-1].height == 1


# --- P1, P2, P6


@pytest.mark.parametrize("overlap", [True, False])
def test_drain_rounds_train_nothing_and_the_last_one_writes_a_snapshot_before_it_is_complete(overlap: bool) -> None:
    """P2, P6."""
    bench = build_bench(4, rounds_per_epoch=2, overlap=overlap, manual={act.WriteSnapshot}).start()
    go_to_last_drain(bench)
    height = bench.state.current.height
    assert max(a.height for a in bench.get_all(act.Train)) == 1
    bench.play()
    (snapshot,) = bench.get_all(act.WriteSnapshot)
    assert snapshot.digest == bench.engine.weights.digests[height]
    assert snapshot.chain == bench.engine.weights.chain
    assert (snapshot.step, snapshot.data_index) == (3, bench.state.current.data_index)
    told = {one.height for asked in bench.get_all(act.Train) for one in asked.decided}
    assert told | {one.height for one in snapshot.decided} == {0, 1}, "the fate of every own result (R8)"
    assert height not in {a.height for a in bench.get_all(WitnessMessage)}
    bench.manual = ()
    bench.feed(bench.answer(snapshot))  # type: ignore[arg-type]
    message = bench.get_all(WitnessMessage)[-1]
    assert (message.height, message.held, message.results_root) == (height, 0, ZERO32)
    assert message.flags == WitnessFlag.COMPLETE | WitnessFlag.FULL_DIGEST
    assert message.heard == 0b1111


def test_a_snapshot_that_cannot_be_written_is_no_reason_to_call_the_round_complete() -> None:
    """P6: `certified` names weights on disk; at half time the digest goes out all the same (W6 c)."""
    bench = build_bench(4, rounds_per_epoch=2, manual={act.WriteSnapshot}).start()
    go_to_last_drain(bench)
    height = bench.state.current.height
    bench.play()
    (snapshot,) = bench.get_all(act.WriteSnapshot)
    bench.feed(act.SnapshotWritten(0, height, snapshot.digest, None))
    bench.wait(15.0)
    assert height not in {a.height for a in bench.get_all(WitnessMessage)}
    bench.pass_time(100)
    assert bench.state.run_state is RunState.ROUND_WITNESS
    bench.wait(2.1)
    report = bench.get_all(WitnessMessage)[-1]
    assert (bench.get_reasons(WitnessMessage)[-1], report.height) == ("half_time", height)
    assert report.flags == WitnessFlag.FULL_DIGEST
    assert report.state_digest == snapshot.digest


def test_a_repeated_last_drain_round_applies_nothing_and_writes_its_own_snapshot() -> None:
    """P2, S1: every height has its own chain digest, and the one that is certified must be on disk."""
    bench = build_bench(4, rounds_per_epoch=2).start()
    go_to_last_drain(bench)
    height = bench.state.current.height
    assert bench.get_all(act.WriteSnapshot)[-1].height == height
    for member in range(1, 4):
        bench.record(member, state_digest=build_hash("late", member))
    bench.now += 100
    bench.settle()
    bench.pass_time(100)
    assert (bench.state.current.height, bench.state.run_state) == (height + 1, RunState.ROUND_TRAIN)
    last = bench.get_all(act.Apply)[-1]
    assert (last.height, last.blobs, last.run_update, last.full_digest) == (height + 1, (), False, True)
    first, second = bench.get_all(act.WriteSnapshot)[-2:]
    assert (first.height, second.height) == (height, height + 1)
    assert first.digest != second.digest
    bench.run_round()
    assert bench.state.run_state is RunState.COOLDOWN
    assert bench.state.certified.digest == second.digest == bench.engine.membership.weights_digest


def test_who_applies_the_last_set_only_in_cooldown_still_reaches_the_certified_weights_and_keeps_them() -> None:
    """P6: others were faster; the record it needs stands until the next epoch forms."""
    digest = build_finished_twin()
    bench = build_bench(4, rounds_per_epoch=2).start()
    bench.run_round()
    bench.run_round()
    bench.manual = {act.Apply}
    bench.run_round()
    last = bench.get_all(act.Apply)[-1]
    assert last.height == bench.state.current.height == 3
    bench.close(1, 2, 3, state_digest=digest)
    assert bench.state.run_state is RunState.COOLDOWN
    assert bench.state.certified.digest == digest
    assert bench.engine.membership.weights_digest is None
    bench.manual = ()
    bench.feed(bench.build_applied(last))
    assert bench.engine.membership.weights_digest == digest
    assert [a.digest for a in bench.get_all(act.WriteSnapshot)] == [digest]


def build_finished_twin() -> bytes:
    """What an epoch of two rounds certifies if all goes well."""
    twin = build_bench(4, rounds_per_epoch=2).start()
    while twin.state.in_round:
        twin.run_round()
    return twin.state.certified.digest


def test_who_is_still_fetching_when_cooldown_begins_goes_on() -> None:
    """C6, P6."""
    digest = build_finished_twin()
    bench = build_bench(4, rounds_per_epoch=2).start()
    bench.run_round()
    bench.run_round()
    missing = bench.get_known(3, 1)[0]
    missing.status = PayloadStatus.FETCHING
    everything = {m: bench.get_known(m, 1)[0].commitment for m in range(4)}
    bench.close(1, 2, 3, held=0b1111, commitments=everything)
    bench.close(1, 2, 3, state_digest=digest)
    assert bench.state.run_state is RunState.COOLDOWN
    bench.feed(act.PayloadFailed(missing.commitment, "no answer", refused=False))
    asked = len(bench.get_all(act.FetchPayload))
    bench.wait(1.0)
    assert len(bench.get_all(act.FetchPayload)) == asked + 1
    bench.feed(act.PayloadArrived(missing.commitment))
    assert bench.engine.membership.weights_digest == digest
    assert [a.digest for a in bench.get_all(act.WriteSnapshot)] == [digest]


def test_a_diverged_client_writes_no_snapshot() -> None:
    """P6: it would be of weights that nobody agreed on."""
    bench = build_bench(4, rounds_per_epoch=2).start()
    bench.run_rounds(2)
    bench.manual = {act.Apply}
    bench.run_round()
    bench.spoil_weights()
    bench.feed(bench.build_applied(bench.get_all(act.Apply)[-1], part=build_hash("wrong")))
    assert 3 in bench.engine.weights.digests
    assert bench.get_all(act.WriteSnapshot) == []


# --- roles


def test_verifiers_do_not_train_and_are_held_by_their_finished() -> None:
    """W1: with no work due, by their Finished."""
    bench = build_bench(6, verification_percent=50).start()
    roles = get_roles(bench.state.current, bench.state.config)
    verifiers = [m for m, role in roles.items() if role is Role.VERIFIER]
    assert len(verifiers) == 3
    assert set(bench.get_record().assignments) == set(range(6)) - set(verifiers)
    for member in verifiers:
        if member != bench.index:
            bench.hear(bench.build_finished(member))
            assert bench.get_record().compute_held() >> member & 1
            assert member not in bench.get_record().get_commitments(0b111111)


def test_a_verifier_says_finished_and_witnesses_like_everybody() -> None:
    roles = get_roles(build_bench(6, verification_percent=50).start().state.current, build_config_of(50))
    own = next(m for m, role in roles.items() if role is Role.VERIFIER)
    bench = build_bench(6, own=own, verification_percent=50).start()
    assert bench.get_all(act.FetchData) == []
    assert bench.get_all(act.Train) == []
    assert bench.get_said(Finished)
    bench.run_rounds(4)
    assert len(bench.get_all(WitnessMessage)) == 4
    assert bench.get_logs(types.Diverged) == []


def build_config_of(verification_percent: int) -> object:
    return build_bench(6, verification_percent=verification_percent).state.config


# --- one member alone


@pytest.mark.parametrize("overlap", [True, False])
def test_a_single_member_runs_an_epoch_alone(overlap: bool) -> None:
    """2.5: q(1) is 1."""
    bench = build_bench(1, rounds_per_epoch=2, overlap=overlap).start()
    rounds = 0
    while bench.state.in_round:
        bench.play()
        message = bench.get_all(WitnessMessage)[-1]
        assert message.height == bench.state.current.height
        bench.close(0, flags=message.flags)
        rounds += 1
    assert rounds == (4 if overlap else 3)
    assert bench.state.certified.digest == bench.engine.membership.weights_digest
    assert [f.members for f in bench.get_logs(types.Applied) if f.update] == [(0,), (0,)]


def test_a_wait_for_very_many_is_not_named_anew_with_each_that_comes() -> None:
    assert describe_awaited([3, 5]) == "members [3, 5]"
    assert describe_awaited(range(8)) == "members [0, 1, 2, 3, 4, 5, 6, 7]"
    assert describe_awaited(range(9)) == describe_awaited(range(200)) == "more than 8 members"
