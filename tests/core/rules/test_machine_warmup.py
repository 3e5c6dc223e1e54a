"""From joined members to round 0: T1, T8, E1, E2, M3."""

from kits.runs import Run, build_run, build_warmup

from psyche.core.committee.seeds import EXPIRED, compute_seed, get_random_seed
from psyche.core.encoding.account import encode_state
from psyche.core.state.state import ZERO32, ClientState, RunState
from psyche.testing.builders import build_hash

HEALTHY, DROPPED, WITHDRAWN = ClientState.HEALTHY, ClientState.DROPPED, ClientState.WITHDRAWN
ENTROPY = build_hash("the hash of the armed slot")


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


# --- T8


def test_t8_warmup_ends_when_every_healthy_member_is_ready() -> None:
    run = build_warmup(3)
    run.show(0, 1)
    assert run.settle() == 0
    run.withdraw(2)
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
    assert run.get_client_states() == [HEALTHY, HEALTHY, HEALTHY, DROPPED]
    assert run.state.current.members == 0b0111


def test_t8_a_quorum_that_is_lost_again_is_forgotten() -> None:
    run = build_warmup(4, warmup_time=30)
    run.show(0, 1, 2)
    since = run.state.epoch.ready_quorum_unix
    assert since
    run.withdraw(3)
    assert run.state.epoch.ready_quorum_unix == since, "enough are still ready"
    run = build_warmup(5, warmup_time=30, min_clients=3)
    run.show(0, 1, 2, 3)
    run.withdraw(0)
    assert (run.state.epoch.ready_quorum_unix, run.state.epoch.ready_len) == (run.now, 3)
    run.withdraw(1)
    assert (run.state.epoch.ready_quorum_unix, run.state.epoch.ready_len) == (0, 2)


def test_t8_who_is_not_ready_leaves_without_a_strike_and_must_join_again() -> None:
    run = build_warmup(3, warmup_time=30)
    run.show(0, 1)
    run.wait(30)
    assert run.get_client_states() == [HEALTHY, HEALTHY, DROPPED]
    slot = run.state.registry.slots[2]
    assert (slot.strikes, slot.until, slot.active) == (0, 0, 0)
    assert run.state.clients[2].exited_height == 0


def test_t8_fewer_than_min_clients_healthy_go_back_to_waiting_at_any_tick() -> None:
    run = build_warmup(3, min_clients=2, init_min_clients=2)
    run.withdraw(0)
    assert run.settle() == 0
    run.withdraw(1)
    epoch = run.state.progress.epoch
    assert run.settle() == 1
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.progress.epoch == epoch
    assert run.wait(10) == 0, "who left must join again"
    run.join(1)
    assert run.settle() == 1
    assert [client.slot for client in run.state.clients] == [1, 2]


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


def build_due() -> Run:
    """Five of seven are ready, half of Warmup is over, and the tick has armed the seed."""
    run = build_warmup(7, entropy_delay=4)
    run.show(0, 1, 2, 3, 4)
    run.now += 15
    assert run.tick(None)
    assert run.state.current.entropy_slot == run.now + 4
    return run


def test_e1_whoever_leaves_when_the_entropy_is_public_is_drawn_all_the_same() -> None:
    run = build_due()
    run.withdraw(4)
    assert run.tick(ENTROPY)
    round_ = run.state.current
    assert (round_.members, round_.electors) == (0b11111, 0b11111), "who was ready when the slot was armed"
    assert (round_.witnesses_expected, round_.quorum) == (5, 4), "it counts as a silent witness"
    assert [client.state for client in run.state.clients] == [HEALTHY] * 4 + [WITHDRAWN] + [DROPPED] * 2
    assert round_.seed == compute_seed(run.state.run_uid, 0, 0, ZERO32, ZERO32, ENTROPY)


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
