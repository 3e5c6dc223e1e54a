"""A member's rounds of local steps: what its trainer is told, what it merges, and what its header says (LS1 to LS8)."""

import pytest
from kits.bench import Bench, build_bench, go_to_last_drain
from kits.results import build_train_reply, get_commitment

from psyche.client.engine import actions as act
from psyche.client.engine.announcements import compute_step_lr
from psyche.core.encoding.header import ResultHeader, decode_header
from psyche.core.state.bits import to_bytes32
from psyche.core.state.gossip import Result
from psyche.core.state.state import ZERO32, ClientFlag, Optimizer, OptimizerKind, RunState
from psyche.telemetry import types
from psyche.wire.gossip import decode_gossip
from psyche.wire.trainer import Work

STEPS = 2
OPTIMIZER = Optimizer(
    OptimizerKind.LOCAL_STEPS, inner_steps=STEPS, merge_step=1, compression_topk=4, compression_chunk=16, value_bits=2,
    error_decay=0.95, outer_rate=1.0,
)  # fmt: skip


def build_local_bench(members: int = 4, **config: object) -> Bench:
    bench = build_bench(members, **({"global_batch_size_start": 16, "global_batch_size_end": 16} | config))
    bench.state.model.optimizer = OPTIMIZER
    return bench.start()


@pytest.fixture
def bench() -> Bench:
    return build_local_bench()


def get_header(bench: Bench) -> ResultHeader:
    body = decode_gossip(bench.get_all(act.Announce)[-1].raw).body
    assert isinstance(body, Result)
    return decode_header(body.header)


def get_refusals(bench: Bench) -> list[str]:
    return [event.reason for event in bench.get_logs(types.Refused)]


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_a_round_starts_from_the_own_result_in_flight_and_an_epochs_first_from_none(members: int) -> None:
    bench = build_local_bench(members)
    first = bench.get_all(act.Train)[-1]
    assert (first.height, first.blobs, first.inner_steps, first.lookahead_lr) == (0, (), (), 0.0)
    assert bench.engine.find_mergeable(0, 0) == []
    bench.run_round()
    second = bench.get_all(act.Train)[-1]
    own = bench.get_known(0, 0)[0].header
    assert (second.height, second.blobs, second.inner_steps) == (1, (own.body_hash,), (STEPS,))
    assert (second.lr, second.next_lr) == tuple(compute_step_lr(bench.state, second.step + one) for one in (0, 1))
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == list(range(members))


def test_without_overlap_nothing_is_in_flight_and_nothing_is_merged() -> None:
    bench = build_local_bench(overlap=False)
    bench.run_round()
    train = bench.get_all(act.Train)[-1]
    assert (train.height, train.blobs, train.in_flight) == (1, (), False)
    assert bench.engine.find_mergeable(0, 1) == []


def test_only_payloads_that_are_here_by_then_are_merged(bench: Bench) -> None:
    bench.train()
    bench.deliver(1)
    late = bench.build_result(2)
    bench.hear(late)
    bench.close()
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == [0, 1]
    bench.feed(act.PayloadArrived(get_commitment(late)))
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == [0, 1, 2]
    assert bench.engine.find_mergeable(1, 1) == [], "of another epoch"


def test_results_of_newcomers_are_not_merged_for_no_set_has_them(bench: Bench) -> None:
    """M8."""
    bench.run_round()
    state = bench.engine.state
    state.model.cold_start_warmup_steps = 3
    state.clients[2].flags |= ClientFlag.NEWCOMER
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == [0, 1, 3]


def test_a_header_says_which_members_were_merged_and_how_many_inner_steps_were_done(bench: Bench) -> None:
    """LS7."""
    bench.run_round()
    bench.train(merged=0b1011, inner_steps=1)
    header = get_header(bench)
    assert (header.lookahead_root, header.inner_steps) == (to_bytes32(0b1011), 1)
    told = bench.get_logs(types.InnerStepsDone)
    assert [(e.height, e.inner_steps, e.merged) for e in told] == [(0, STEPS, ()), (1, 1, (0, 1, 3))]


def test_a_header_has_the_roots_of_the_error_memory_and_no_table_where_the_run_verifies() -> None:
    """LS7."""
    bench = build_local_bench(verification_percent=5)
    roots = {"momentum_before": bytes([1]) * 32, "momentum_after": bytes([2]) * 32}
    bench.train(work=Work(table=b"", **roots))
    header = get_header(bench)
    assert (header.momentum_before, header.momentum_after) == tuple(roots.values())
    assert (header.work_root, header.piece_samples) == (ZERO32, 0)
    bench.hear(bench.build_result(1, **roots))
    assert get_refusals(bench) == []


@pytest.mark.parametrize("steps", [0, STEPS + 1, 0xFFFF])
def test_a_result_of_more_inner_steps_than_there_are_or_of_none_is_refused(bench: Bench, steps: int) -> None:
    """LS7, R3."""
    bench.hear(bench.build_result(1, inner_steps=steps))
    assert get_refusals(bench) == [f"header field inner_steps {steps} is not in 1..{STEPS}"]
    assert bench.get_all(act.FetchPayload) == []


def test_a_member_with_fewer_samples_than_inner_steps_cannot_have_done_them_all() -> None:
    bench = build_local_bench(global_batch_size_start=4, global_batch_size_end=4)
    bench.hear(bench.build_result(1, inner_steps=STEPS))
    assert get_refusals(bench) == [f"header field inner_steps {STEPS} is not in 1..1"]
    bench.hear(bench.build_result(2))
    assert [fetch.member for fetch in bench.get_all(act.FetchPayload)] == [2]


def test_in_a_run_with_distro_a_result_has_no_inner_steps() -> None:
    bench = build_bench(4).start()
    bench.hear(bench.build_result(1, inner_steps=1))
    assert get_refusals(bench) == ["header field inner_steps 1 is not in 0..0"]
    bench.run_round()
    assert bench.get_logs(types.InnerStepsDone) == []
    assert bench.get_all(act.Train)[-1].blobs == bench.get_all(act.Apply)[-1].inner_steps == ()


def test_members_weigh_in_an_apply_by_the_inner_steps_of_their_headers(bench: Bench) -> None:
    """LS4: a member that did half of its steps counts half."""
    bench.train()
    half = bench.build_result(1, inner_steps=1)
    bench.hear(half)
    bench.feed(act.PayloadArrived(get_commitment(half)))
    bench.close()
    bench.run_round()
    apply = bench.get_all(act.Apply)[-1]
    steps = dict(zip((member for member, _ in apply.applied), apply.inner_steps, strict=True))
    assert (apply.height, steps) == (2, {0: STEPS, 1: 1})


def test_a_result_that_was_never_announced_is_no_start_of_the_next_round(bench: Bench) -> None:
    bench.deliver(1, 2, 3)
    bench.close(1, 2, 3)
    bench.feed(act.Trained(0, 0, build_train_reply(inner_steps=STEPS), ZERO32))
    train = bench.get_all(act.Train)[-1]
    assert (train.height, train.blobs) == (1, ())
    assert [(sent.height, sent.applied) for sent in train.decided] == [(0, False)]
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == [1, 2, 3]


def get_deadlines(bench: Bench) -> list[float]:
    """Those that the running training was told, from the round's start."""
    started = bench.get_record().started_at
    return [train.deadline - started for train in (bench.get_all(act.Train)[-1], *bench.get_all(act.ShortenTrain))]


def test_once_a_quorum_has_finished_a_member_has_half_of_their_patience_left(bench: Bench) -> None:
    """LS9."""
    limit_s = bench.state.config.max_round_train_time * 0.9
    assert get_deadlines(bench) == [limit_s]
    bench.wait(8.0)
    for member in (1, 2):
        bench.hear(bench.build_finished(member))
    assert get_deadlines(bench) == [limit_s]
    bench.hear(bench.build_finished(3))
    assert get_deadlines(bench) == [limit_s, 10.0], "the others wait until 8 s x 150 %"
    bench.wait(1.0)
    assert len(get_deadlines(bench)) == 2, "said once"
    bench.train(inner_steps=1)
    assert get_header(bench).inner_steps == 1


def test_a_member_ends_its_inner_steps_when_it_sees_round_witness(bench: Bench) -> None:
    """LS9: the round closes as soon as it is agreed."""
    for member in (1, 2, 3):
        bench.record(member, held=0, commitments={}, state_digest=bytes([member]) * 32)
    bench.pass_time(5.0)
    assert bench.state.run_state is RunState.ROUND_WITNESS
    assert get_deadlines(bench)[-1] == 5.0


def test_where_all_wait_for_everyone_only_the_rounds_limit_cuts_inner_steps_short() -> None:
    bench = build_local_bench(straggler_percent=0)
    for member in (1, 2, 3):
        bench.hear(bench.build_finished(member))
    assert get_deadlines(bench) == [bench.state.config.max_round_train_time * 0.9]


def test_a_batch_of_distro_is_never_cut_short() -> None:
    bench = build_bench(4).start()
    for member in (1, 2, 3):
        bench.hear(bench.build_finished(member))
    bench.pass_time(bench.state.config.max_round_train_time)
    assert bench.get_all(act.ShortenTrain) == []
    assert bench.get_all(act.Train)[-1].deadline == float("inf")


def test_values_of_a_result_that_was_merged_and_then_not_decided_are_told_as_left_out(bench: Bench) -> None:
    """R8: the round is void, and each member gets its own values back."""
    bench.run_round()
    assert [one.member for one in bench.engine.find_mergeable(0, 1)] == [0, 1, 2, 3]
    bench.play()
    bench.split()
    told = bench.get_all(act.Train)[-1]
    assert (told.height, [(sent.height, sent.applied) for sent in told.decided]) == (2, [(0, False)])
    assert bench.get_all(act.Apply)[-1].inner_steps == ()


def test_drain_rounds_train_and_merge_nothing_and_apply_what_was_in_flight(bench: Bench) -> None:
    go_to_last_drain(bench)
    drain = bench.state.epoch.drain_from_height
    assert max(train.height for train in bench.get_all(act.Train)) == drain - 1
    bench.run_round()
    applied = {apply.height: apply.inner_steps for apply in bench.get_all(act.Apply)}
    assert applied[drain] == applied[drain + 1] == (STEPS,) * 4
