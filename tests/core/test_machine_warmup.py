"""From joined members to round 0: T1, T8, S8, E1, E2, M3 and P5."""

import pytest

from psyche.core import transitions
from psyche.core.errors import (
    DigestMismatch,
    DuplicateWitness,
    Halted,
    InvalidRunState,
    InvalidWitness,
    TooManyCandidates,
    UnknownMember,
    WrongRound,
)
from psyche.core.layout import encode_state
from psyche.core.limits import NO_UPLOADER
from psyche.core.seeds import EXPIRED, compute_seed, get_random_seed
from psyche.core.state import ZERO32, ClientFlag, ClientState, RunState
from psyche.testing.builders import Run, build_hash, build_keys, build_run, expect_refusal

OTHER = build_hash("other weights")
HEALTHY, DROPPED, WITHDRAWN = ClientState.HEALTHY, ClientState.DROPPED, ClientState.WITHDRAWN


def build_warmup(members: int = 3, **config: object) -> Run:
    run = build_run(members, **config)
    run.form()
    assert run.state.run_state is RunState.WARMUP
    return run


def get_states(run: Run) -> list[ClientState]:
    return [client.state for client in run.state.clients]


def withdraw(run: Run, member: int) -> None:
    state = run.state
    transitions.withdraw(state, run.now, state.clients[member].p2p, state.progress.epoch, member)


# --- WaitingForMembers


def test_formation_needs_init_min_clients_and_the_extra_time() -> None:
    run = build_run(2, init_min_clients=3, min_clients=2)
    assert run.wait(100) == 0
    run.join(7)
    assert run.settle() == 1, "the extra time counts from the state's start, so a late quorum starts at once"
    assert run.state.run_state is RunState.WARMUP
    assert [client.slot for client in run.state.clients] == [0, 1, 2]


def test_t1_a_time_out_needs_its_duration_and_at_least_a_second() -> None:
    run = build_run(1)
    assert run.wait(1) == 0
    assert run.wait(1) == 1
    run.state.config.warmup_time = 0
    assert run.settle() == 0, "no time has passed in Warmup yet"
    assert run.wait(1) == 1
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS


def test_t1_a_clock_that_goes_backwards_delays_and_never_breaks() -> None:
    run = build_run(1)
    run.now -= 1_000
    assert run.settle() == 0
    run.now += 1_000
    run.form()
    assert run.state.run_state is RunState.WARMUP


def test_t2_a_tick_without_effect_changes_no_byte() -> None:
    run = build_run(3)
    before = encode_state(run.state)
    assert not run.tick()
    assert encode_state(run.state) == before


def test_t2_every_effect_raises_the_nonce_by_one() -> None:
    run = build_run(3)
    nonce = run.state.nonce
    run.now += 2
    assert run.tick()
    assert run.state.nonce == nonce + 1


@pytest.mark.parametrize("halted", [RunState.UNINITIALIZED, RunState.PAUSED, RunState.FINISHED])
def test_t2_ticking_a_halted_run_is_refused(halted: RunState) -> None:
    run = build_run(1)
    run.state.run_state = halted
    with expect_refusal(run.state, Halted):
        run.tick()


def test_formation_starts_the_epoch_from_a_clean_sheet() -> None:
    run = build_run(3, rounds_per_epoch=1).warm_up().finish_epoch()
    run.rejoin()
    run.state.epoch.warmup_failures = 1
    run.state.epoch.cold_start = True
    run.form()
    epoch = run.state.epoch
    assert (epoch.warmup_failures, epoch.cold_start) == (1, True), "these two survive"
    assert epoch.first_round
    assert (epoch.credit_total, epoch.drain_from_height, epoch.ready_len) == (0, 0, 0)
    assert epoch.start_timestamp == run.now
    assert not any(round_.members for round_ in run.state.rounds)
    assert all(c.good_streak == 8 and not c.credits for c in run.state.clients), "A1: founding members start at 8"


# --- T8


def test_t8_warmup_ends_when_every_healthy_member_is_ready() -> None:
    run = build_warmup(3)
    run.show(0, 1)
    assert run.settle() == 0
    withdraw(run, 2)
    assert run.settle() == 2, "one tick arms the seed, one starts the round"
    assert run.state.run_state is RunState.ROUND_TRAIN
    assert run.state.current.members == 0b011


def test_t8_warmup_ends_at_one_and_a_half_times_the_pace_of_the_quorum_but_not_before_half_its_time() -> None:
    run = build_warmup(4, warmup_time=30)
    run.wait(4)
    run.show(0, 1, 2)
    assert run.state.epoch.ready_quorum_unix == run.now
    assert run.wait(10) == 0, "6 s would be the pace, but a newcomer has half of 30 s"
    assert run.wait(1) == 2
    assert get_states(run) == [HEALTHY, HEALTHY, HEALTHY, DROPPED]
    assert run.state.current.members == 0b0111


def test_t8_the_pace_counts_where_it_is_later_than_the_half() -> None:
    run = build_warmup(4, warmup_time=60, straggler_percent=200)
    run.wait(20)
    run.show(0, 1, 2)
    assert run.wait(19) == 0
    assert run.wait(1) == 2


def test_t8_with_straggler_zero_everybody_is_waited_for() -> None:
    run = build_warmup(4, warmup_time=30, straggler_percent=0)
    run.show(0, 1, 2)
    assert run.wait(29) == 0
    assert run.wait(1) == 2
    assert run.state.current.members == 0b0111


def test_t8_fewer_ready_than_the_quorum_wait_for_warmup_time() -> None:
    run = build_warmup(4, warmup_time=30, min_clients=2)
    run.show(0, 1)
    assert run.wait(29) == 0
    assert run.state.epoch.ready_quorum_unix == 0
    assert run.wait(1) == 2
    assert run.state.current.members == 0b0011


def test_t8_a_quorum_that_is_lost_again_is_forgotten() -> None:
    run = build_warmup(4, warmup_time=30)
    run.show(0, 1, 2)
    since = run.state.epoch.ready_quorum_unix
    assert since
    withdraw(run, 3)
    assert run.state.epoch.ready_quorum_unix == since, "enough are still ready"
    run = build_warmup(5, warmup_time=30, min_clients=3)
    run.show(0, 1, 2, 3)
    withdraw(run, 0)
    assert (run.state.epoch.ready_quorum_unix, run.state.epoch.ready_len) == (run.now, 3)
    withdraw(run, 1)
    assert (run.state.epoch.ready_quorum_unix, run.state.epoch.ready_len) == (0, 2)


def test_t8_a_departure_can_make_the_ready_ones_enough() -> None:
    run = build_warmup(5, warmup_time=30)
    run.show(0, 1, 2)
    assert run.state.epoch.ready_quorum_unix == 0
    run.now += 3
    withdraw(run, 4)
    assert run.state.epoch.ready_quorum_unix == run.now


def test_t8_who_is_not_ready_leaves_without_a_strike_and_must_join_again() -> None:
    run = build_warmup(3, warmup_time=30)
    run.show(0, 1)
    run.wait(30)
    assert get_states(run) == [HEALTHY, HEALTHY, DROPPED]
    slot = run.state.registry.slots[2]
    assert (slot.strikes, slot.until, slot.active) == (0, 0, 0)
    assert run.state.clients[2].exited_height == 0


def test_t8_fewer_than_min_clients_healthy_go_back_to_waiting_at_any_tick() -> None:
    run = build_warmup(3, min_clients=2, init_min_clients=2)
    withdraw(run, 0)
    assert run.settle() == 0
    withdraw(run, 1)
    epoch = run.state.progress.epoch
    assert run.settle() == 1
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.progress.epoch == epoch
    assert run.wait(10) == 0, "who left must join again"
    run.join(1)
    assert run.settle() == 1
    assert [client.slot for client in run.state.clients] == [1, 2]


def test_t8_fewer_ready_than_min_clients_at_warmup_time_go_back_to_waiting() -> None:
    run = build_warmup(3, min_clients=2, init_min_clients=2)
    run.show(1)
    run.wait(30)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert get_states(run) == [DROPPED, HEALTHY, DROPPED]
    assert [slot.active for slot in run.state.registry.slots] == [0, 1, 0], "who was ready is still there"


def test_m3_joins_are_used_up_when_the_first_round_starts() -> None:
    run = build_warmup(2)
    assert run.state.registry.next_active == 1
    run.warm_up()
    assert run.state.registry.next_active == 2


# --- E1, E2


def test_e1_the_seed_is_armed_by_the_tick_that_finds_the_start_due() -> None:
    run = build_warmup(2, entropy_delay=4)
    run.show(0)
    assert not run.tick()
    assert run.state.current.entropy_slot == 0
    run.show(1)
    assert run.tick()
    assert run.state.current.entropy_slot == run.now + 4
    assert run.state.run_state is RunState.WARMUP


def test_e1_slot_zero_without_delay_is_not_mistaken_for_unarmed() -> None:
    run = build_warmup(1)
    run.show(0)
    assert transitions.tick(run.state, run.now, 0, None)
    assert run.state.current.entropy_slot == 1


def test_e2_no_entropy_yet_is_no_effect_and_conditions_are_checked_again_when_it_fires() -> None:
    run = build_warmup(3, min_clients=2)
    run.show(0, 1, 2)
    run.tick()
    assert not run.tick(None)
    withdraw(run, 2)
    withdraw(run, 1)
    assert run.tick()
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS


def test_e2_an_expired_slot_is_armed_again() -> None:
    run = build_warmup(1)
    run.show(0)
    run.tick()
    assert not run.tick(EXPIRED), "the same slot: nothing to change"
    run.now += 500
    assert run.tick(EXPIRED)
    assert run.state.current.entropy_slot == run.now


def test_e3_the_first_seed_follows_from_the_one_drawn_last() -> None:
    run = build_warmup(2)
    run.show(0, 1)
    run.tick()
    entropy = build_hash("the slot's hash")
    run.tick(entropy)
    seed = compute_seed(run.state.run_uid, 0, 0, ZERO32, ZERO32, entropy)
    assert run.state.current.seed == run.state.last_seed == seed
    assert run.state.current.random_seed == get_random_seed(seed)
    run.finish_epoch()
    last = run.state.last_seed
    run.rejoin()
    run.form()
    run.show(0, 1)
    run.tick()
    run.tick(entropy)
    assert run.state.current.seed == compute_seed(run.state.run_uid, 1, 0, last, ZERO32, entropy)


# --- S8


def test_s8_the_first_start_certifies_what_a_quorum_of_the_ready_shows() -> None:
    run = build_warmup(4)
    run.show(0, 1, 2, 3)
    run.settle()
    certified = run.state.certified
    assert certified.digest == run.get_start_digest()
    assert (certified.epoch, certified.step, certified.data_index, certified.uploader) == (0, 1, 0, NO_UPLOADER)
    assert run.state.checkpoint == certified
    assert run.state.checkpoint is not certified


def test_s8_others_than_the_winner_are_dropped() -> None:
    run = build_warmup(4)
    run.show(0, 2, 3)
    run.show(1, digest=OTHER)
    run.settle()
    assert run.state.current.members == 0b1101
    assert get_states(run) == [HEALTHY, DROPPED, HEALTHY, HEALTHY]
    assert run.state.registry.slots[1].active == 0, "it joins again and reloads"


def test_s8_without_a_winner_nobody_is_ready_and_warmup_is_given_up() -> None:
    run = build_warmup(4)
    run.show(0, 1)
    run.show(2, 3, digest=OTHER)
    assert run.wait(29) == 0
    assert run.wait(1) == 1
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert get_states(run) == [DROPPED] * 4
    assert run.state.certified.digest == ZERO32


def test_s8_a_winner_with_too_few_members_does_not_start() -> None:
    run = build_warmup(3, min_clients=3, init_min_clients=3)
    run.show(0, 1)
    run.show(2, digest=OTHER)
    run.wait(30)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert get_states(run) == [HEALTHY, HEALTHY, DROPPED]


def test_s8_what_a_member_shows_leaves_its_other_flags_as_they_are() -> None:
    run = build_warmup(3)
    for client in run.state.clients:
        client.flags |= ClientFlag.NEWCOMER
    run.show(0)
    run.show(1, digest=OTHER)
    assert all(client.flags & ClientFlag.NEWCOMER for client in run.state.clients)
    assert [bool(client.flags & ClientFlag.CANDIDATE_LOW) for client in run.state.clients] == [False, True, False]


def test_s8_a_fifth_candidate_is_refused_and_an_abandoned_one_makes_room() -> None:
    run = build_warmup(6)
    for member in range(4):
        run.show(member, digest=build_hash(member))
    with expect_refusal(run.state, TooManyCandidates, "S8"):
        run.show(4, digest=build_hash(4))
    run.show(4, digest=build_hash(2))
    withdraw(run, 1)
    run.show(5, digest=build_hash(5))
    assert [c.count for c in run.state.epoch.start_candidates] == [1, 1, 2, 1]
    assert run.state.epoch.start_candidates[1].digest == build_hash(5)
    assert run.state.epoch.ready_len == 5


def test_s8_certified_weights_must_be_shown_exactly() -> None:
    run = build_run(2, rounds_per_epoch=1).warm_up().finish_epoch()
    run.rejoin()
    run.form()
    with expect_refusal(run.state, DigestMismatch, "S8"):
        run.show(0, digest=OTHER)
    run.show(0, 1)
    assert run.settle() == 2


def test_s8_a_ready_message_is_checked_like_every_other() -> None:
    run = build_warmup(3)
    state, digest = run.state, run.get_start_digest()
    key = state.clients[0].p2p

    def send(sender: bytes = key, epoch: int = 0, member: int = 0, shown: bytes = digest) -> None:
        transitions.warmup_witness(state, run.now, sender, epoch, member, shown)

    with expect_refusal(state, WrongRound, "T7"):
        send(epoch=1)
    with expect_refusal(state, UnknownMember):
        send(member=3)
    with expect_refusal(state, UnknownMember, "M1"):
        send(sender=state.clients[1].p2p)
    with expect_refusal(state, InvalidWitness, "S8"):
        send(shown=ZERO32)
    with expect_refusal(state, InvalidWitness, "S8"):
        send(shown=b"short")
    send(sender=state.clients[0].signer)
    with expect_refusal(state, DuplicateWitness, "K3"):
        send()
    withdraw(run, 1)
    with expect_refusal(state, InvalidWitness, "Healthy"):
        send(sender=state.clients[1].p2p, member=1)
    run.show(2)
    run.settle()
    with expect_refusal(state, DuplicateWitness, "K3"):
        send()
    with expect_refusal(state, InvalidRunState):
        send(sender=state.clients[1].p2p, member=1)
    state.run_state = RunState.WAITING_FOR_MEMBERS
    with expect_refusal(state, InvalidRunState):
        send()
    state.run_state = RunState.PAUSED
    with expect_refusal(state, Halted):
        send()


# --- P5


def build_failing(members: int = 2) -> Run:
    """A run whose members can no longer show what is certified."""
    run = build_run(members, rounds_per_epoch=1, min_clients=2, init_min_clients=2).warm_up().finish_epoch()
    run.rejoin()
    return run


def fail_warmup(run: Run) -> None:
    run.form()
    assert run.state.run_state is RunState.WARMUP
    run.wait(run.state.config.warmup_time)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    run.rejoin()


def test_p5_two_warmups_in_which_nobody_is_ready_go_back_to_the_checkpoint() -> None:
    run = build_failing()
    state, checkpoint = run.state, run.state.checkpoint
    assert state.certified != checkpoint
    fail_warmup(run)
    assert state.epoch.warmup_failures == 1
    assert state.progress.step == 2
    fail_warmup(run)
    assert state.certified == checkpoint
    assert state.certified is not checkpoint
    assert (state.progress.step, state.progress.epoch_start_data_index) == (1, 0)
    assert state.progress.epoch == 1, "the epoch number never goes back"
    assert state.epoch.warmup_failures == 0
    run.warm_up()
    assert state.run_state is RunState.ROUND_TRAIN


def test_p5_a_checkpoint_more_than_one_epoch_older_waits_for_ten_failures() -> None:
    run = build_failing()
    for _ in range(2):
        run.warm_up().finish_epoch()
        run.rejoin()
    assert run.state.certified.epoch == 2
    for count in range(1, 10):
        fail_warmup(run)
        assert run.state.epoch.warmup_failures == count
    fail_warmup(run)
    assert run.state.certified == run.state.checkpoint


def test_p5_a_warmup_that_starts_a_round_sets_the_count_to_zero() -> None:
    run = build_failing()
    fail_warmup(run)
    run.warm_up()
    assert run.state.epoch.warmup_failures == 0


def test_p5_one_ready_member_or_too_few_healthy_ones_are_no_failure() -> None:
    run = build_failing()
    run.form()
    run.show(0)
    run.wait(30)
    assert run.state.epoch.warmup_failures == 0
    run.rejoin()
    run.form()
    withdraw(run, 0)
    run.wait(30)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.epoch.warmup_failures == 0


def test_p5_before_anything_is_certified_there_is_nothing_to_go_back_to() -> None:
    run = build_warmup(2)
    for _ in range(3):
        run.wait(30)
        assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
        run.join(0, 1)
        run.form()
    assert run.state.epoch.warmup_failures == 0
    assert build_keys(0)[0] == run.state.clients[0].signer


def test_t8_a_ready_member_that_goes_is_no_longer_counted_with_certified_weights_either() -> None:
    run = build_failing(3)
    run.form()
    run.show(0, 1)
    withdraw(run, 1)
    assert run.state.epoch.ready_len == 1
    assert run.settle() == 0
