"""How epochs end: P1 to P4, P7, S5, H3; finishing; the totals of P3."""

from kits.runs import Run, build_run, build_training, expect_refusal

from psyche.core.state.errors import Halted
from psyche.core.state.messages import LeaveRun, Pause, Resume
from psyche.core.state.state import ClientState, RoundFlag, RunState, StopReason, WitnessFlag

NO_DIGEST = WitnessFlag.COMPLETE | WitnessFlag.NO_DIGEST


def run_void(run: Run, **overrides: object) -> None:
    """A round in which nobody agrees on anything anybody holds."""
    round_ = run.state.current
    for member in run.get_speaking_witnesses():
        run.send(run.build_witness(member, held=1 << member, **overrides))
    run.settle()
    if not round_.flags & RoundFlag.CLOSED:
        run.wait(run.state.config.max_round_train_time)
    assert round_.flags & RoundFlag.VOID


def assert_draining(run: Run, reason: StopReason, height: int) -> None:
    assert run.state.run_state is RunState.ROUND_TRAIN
    assert run.state.current.flags & RoundFlag.DRAIN
    assert run.state.epoch.drain_from_height == height == run.state.current.height
    assert run.state.epoch.stop_reason is reason


def assert_given_up(run: Run, reason: StopReason) -> None:
    """In Cooldown with nothing certified: the epoch's work is lost, and progress shows it (P3)."""
    state = run.state
    assert state.run_state is RunState.COOLDOWN
    assert state.epoch.stop_reason is reason
    mark = state.certified
    run.wait(state.config.cooldown_time)
    assert state.certified is mark
    assert (state.progress.step, state.progress.epoch_start_data_index) == (mark.step, mark.data_index)


# --- P1: what stops an epoch


def test_p1_after_rounds_per_epoch() -> None:
    run = build_training(rounds_per_epoch=3, rounds=2)
    assert not run.state.current.flags & RoundFlag.DRAIN
    run.run_round()
    assert_draining(run, StopReason.EPOCH_LENGTH, 3)


def test_p1_after_epoch_time_which_counts_from_warmup() -> None:
    run = build_training(rounds_per_epoch=0, epoch_time=60, warmup_time=20, rounds=3)
    start = run.state.epoch.start_timestamp
    run.now = start + 58
    run.run_round()
    assert not run.state.current.flags & RoundFlag.DRAIN
    run.run_round()
    assert_draining(run, StopReason.EPOCH_LENGTH, 5)


def test_p1_at_total_steps() -> None:
    run = build_training(total_steps=3, rounds=1)
    run.run_round()
    assert_draining(run, StopReason.TOTAL_STEPS, 2)


def test_p1_below_min_clients_one_member_is_enough_to_drain() -> None:
    run = build_training(3, rounds=1, min_clients=2)
    run.withdraw(0)
    run.withdraw(1)
    run.send(run.build_witness(2))
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    assert_draining(run, StopReason.MIN_CLIENTS, 2)
    assert run.state.current.members == 0b100
    run.finish_epoch()
    assert run.state.certified.step == 3, "one member is enough to certify"


def test_p1_with_nobody_left_straight_to_cooldown() -> None:
    run = build_training(2, rounds=1)
    run.withdraw(0)
    run.withdraw(1)
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    assert_given_up(run, StopReason.MIN_CLIENTS)


# --- S5, P7: no agreement


def test_s5_two_rounds_without_digest_go_straight_to_cooldown() -> None:
    run = build_training(rounds=2)
    run.run_round(flags=NO_DIGEST)
    run.run_round(flags=NO_DIGEST)
    assert_given_up(run, StopReason.NO_DIGEST)


def test_p7_two_void_rounds_without_digest_go_straight_to_cooldown() -> None:
    run = build_training(rounds=2)
    run_void(run)
    run_void(run, flags=NO_DIGEST)
    assert_given_up(run, StopReason.VOID)


def test_p7_two_void_rounds_with_agreed_digest_drain() -> None:
    run = build_training(rounds=2)
    run_void(run)
    assert not run.state.current.flags & RoundFlag.DRAIN, "one void round is not the end"
    run_void(run)
    assert_draining(run, StopReason.VOID, 4)
    run.finish_epoch()
    assert run.state.certified.step == 5


# --- P2


def test_p2_drain_rounds_spend_neither_samples_nor_steps() -> None:
    run = build_training(rounds=1, rounds_per_epoch=1)
    first = run.state.current
    assert (first.batch_size, first.step, first.data_index) == (0, 2, 12)
    run.run_round()
    second = run.state.current
    assert (second.batch_size, second.step, second.data_index) == (0, 2, 12)
    assert run.state.progress.step == 2


def test_p2_the_last_drain_round_is_repeated_while_it_has_no_agreed_digest() -> None:
    run = build_training(rounds=2, rounds_per_epoch=1)
    last = run.state.current
    run.run_round(flags=NO_DIGEST)
    again = run.state.current
    assert (again.height, again.step, again.data_index) == (last.height + 1, last.step, last.data_index)
    run.run_round()
    assert run.state.run_state is RunState.COOLDOWN
    assert run.state.certified.digest == again.agreed_digest


# --- P3


def test_p3_certified_is_what_the_last_drain_agreed_on() -> None:
    run = build_training(rounds_per_epoch=2)
    *_, last = run.run_rounds()
    certified = run.state.certified
    assert (certified.digest, certified.epoch) == (last.agreed_digest, 0)
    assert (certified.step, certified.data_index) == (3, 24)
    assert run.state.checkpoint.step == 1, "the checkpoint waits for an upload"


def test_p3_an_epoch_that_certifies_nothing_is_a_rollback_and_its_number_is_spent() -> None:
    run = build_training(rounds_per_epoch=2).finish_epoch()
    mark = run.state.certified
    run.rejoin()
    run.warm_up()
    run.run_round()
    run.run_round(flags=NO_DIGEST)
    run.run_round(flags=NO_DIGEST)
    assert run.state.progress.step > mark.step
    assert_given_up(run, StopReason.NO_DIGEST)
    assert run.state.progress.epoch == 2


def test_the_run_finishes_when_its_steps_are_certified() -> None:
    run = build_training(total_steps=3, rounds_per_epoch=2).finish_epoch()
    assert run.state.run_state is RunState.FINISHED
    with expect_refusal(run.state, Halted):
        run.tick()


def test_an_epoch_without_a_successor_number_is_the_last() -> None:
    run = build_run(2, rounds_per_epoch=1)
    run.state.progress.epoch = 65_535
    run.warm_up().finish_epoch()
    assert run.state.run_state is RunState.FINISHED
    assert run.state.progress.epoch == 65_535


# --- P4


def test_p4_a_pause_while_training_takes_effect_after_cooldown() -> None:
    run = build_training(rounds=1)
    run.apply(Pause())
    assert run.state.pending_pause
    nonce = run.state.nonce
    run.apply(Pause())
    assert run.state.nonce == nonce, "a repeat changes nothing"
    run.finish_epoch()
    assert run.state.run_state is RunState.PAUSED
    assert not run.state.pending_pause
    assert run.state.epoch.cold_start
    assert run.state.certified.step == 3, "nothing is lost"


def test_p4_before_the_first_round_a_pause_is_immediate() -> None:
    run = build_run(2)
    run.apply(Pause())
    assert run.state.run_state is RunState.PAUSED
    assert run.state.epoch.cold_start
    with expect_refusal(run.state, Halted):
        run.apply(Pause())


def test_p4_a_pause_in_warmup_sends_everybody_away() -> None:
    run = build_run(2)
    run.form()
    run.show(0)
    run.apply(LeaveRun(), run.state.clients[1].signer)
    run.apply(Pause())
    assert [client.state for client in run.state.clients] == [ClientState.WITHDRAWN] * 2
    assert run.state.registry.slots[1].signer == bytes(32), "a leaver's slot is free again"


def test_p4_after_a_resume_everybody_joins_again() -> None:
    run = build_run(2)
    run.apply(Pause())
    run.now += 1_000
    run.apply(Resume())
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.wait(100) == 0
    run.join(0, 1)
    assert run.settle() == 1


def test_p4_a_following_epoch_without_pause_ends_the_cold_start() -> None:
    run = build_run(2, rounds_per_epoch=1)
    run.apply(Pause())
    run.apply(Resume())
    run.join(0, 1)
    run.warm_up()
    assert run.state.epoch.cold_start
    run.finish_epoch()
    assert not run.state.epoch.cold_start
