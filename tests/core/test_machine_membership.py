"""Slots, departures, ejection, credit: M1 to M8, R7, H5, K3."""

from collections.abc import Callable

import pytest

from psyche.core import transitions
from psyche.core.errors import (
    Banned,
    ClientsFull,
    ConfigRefused,
    CoordinatorError,
    DuplicateWitness,
    Halted,
    InvalidEvidence,
    InvalidJoin,
    InvalidWithdraw,
    NoActiveRound,
    StakeTooLow,
    UnknownMember,
    WrongRound,
)
from psyche.core.layout import encode_state
from psyche.core.limits import U64_MAX
from psyche.core.membership import find_reclaimable
from psyche.core.roster import find_slot
from psyche.core.state import ZERO32, ClientState, RoundFlag, RunState, SlotState
from psyche.testing.builders import Run, build_hash, build_keys, build_run, expect_refusal

FREE, JOINED, LEAVING, BANNED = SlotState.FREE, SlotState.JOINED, SlotState.LEAVING, SlotState.BANNED


def build_training(members: int = 4, rounds: int = 0, **config: object) -> Run:
    run = build_run(members, **{"rounds_per_epoch": 30, **config}).warm_up()
    for _ in range(rounds):
        run.run_round()
    return run


def withdraw(run: Run, number: int, *, epoch: int | None = None, member: int | None = None) -> None:
    named = run.state.progress.epoch if epoch is None else epoch
    transitions.withdraw(run.state, run.now, build_keys(number)[1], named, number if member is None else member)


def eject(run: Run, member: int, *, epoch: int = 0, height: int | None = None) -> None:
    named = run.state.current.height if height is None else height
    transitions.report_equivocation(run.state, run.now, epoch, named, member)


# --- M1, M5: join


def test_m1_a_join_takes_a_slot_for_signer_and_session_key() -> None:
    run = build_run(0)
    assert transitions.join(run.state, run.now, *build_keys(5), 40, expires_unix=99) == 0
    slot = run.state.registry.slots[0]
    assert (slot.signer, slot.p2p) == build_keys(5)
    assert (slot.state, slot.stake, slot.expires_unix, slot.joined_unix, slot.active) == (JOINED, 40, 99, run.now, 1)


def test_k3_repeating_a_join_changes_no_byte() -> None:
    run = build_run(3)
    before = encode_state(run.state)
    run.now += 1
    assert run.join(1) == [1]
    assert encode_state(run.state) == before


def test_m1_a_signer_keeps_its_slot_with_a_new_session_key() -> None:
    run = build_run(3)
    fresh = build_hash("fresh")
    assert transitions.join(run.state, run.now, build_keys(1)[0], fresh) == 1
    assert run.state.registry.slots[1].p2p == fresh
    assert find_slot(run.state, build_keys(1)[1]) is None


KEY = build_hash("a key")
BAD_JOINS: list[tuple[str, bytes, bytes]] = [
    ("another's session key", KEY, build_keys(1)[1]),
    ("own signer, another's session key", build_keys(0)[0], build_keys(1)[1]),
    ("a short signer", b"short", KEY),
    ("a zero signer", ZERO32, KEY),
    ("a long session key", KEY, bytes(range(33))),
    ("a zero session key", KEY, ZERO32),
]


@pytest.mark.parametrize(("signer", "p2p"), [pytest.param(s, p, id=name) for name, s, p in BAD_JOINS])
def test_m1_no_one_joins_with_anothers_or_a_malformed_key(signer: bytes, p2p: bytes) -> None:
    run = build_run(3)
    with expect_refusal(run.state, InvalidJoin, "M1"):
        transitions.join(run.state, run.now, signer, p2p)


def test_m5_the_stake_must_reach_min_stake() -> None:
    run = build_run(0, min_stake=10)
    with expect_refusal(run.state, StakeTooLow, "M5"):
        transitions.join(run.state, run.now, *build_keys(0), 9)
    transitions.join(run.state, run.now, *build_keys(0), 10)


@pytest.mark.parametrize("state", [RunState.UNINITIALIZED, RunState.FINISHED])
def test_nobody_joins_a_run_that_is_over_or_has_not_begun(state: RunState) -> None:
    run = build_run(1)
    run.state.run_state = state
    with expect_refusal(run.state, Halted):
        run.join(1)


def test_a_paused_run_can_be_joined_but_the_resume_asks_again() -> None:
    run = build_run(0)
    transitions.pause(run.state, run.now)
    run.join(0)
    transitions.resume(run.state, run.now)
    assert run.state.registry.slots[0].active < run.state.registry.next_active


def test_f17_the_257th_slot_is_refused_and_a_freed_one_is_taken_again() -> None:
    run = build_run(256)
    with expect_refusal(run.state, ClientsFull):
        run.join(256)
    transitions.leave(run.state, run.now, build_keys(77)[0])
    assert run.state.registry.slots[77].state is FREE
    assert run.join(256) == [77]
    assert len(run.state.registry.slots) == 256


# --- M2, M3: who is taken


def test_m3_members_stand_in_slot_order_whatever_the_order_of_joining() -> None:
    run = build_run(3, rounds_per_epoch=1).warm_up().finish_epoch()
    run.join(2, 0)
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 2]


def test_m2_who_does_not_join_again_is_not_taken() -> None:
    run = build_run(3, rounds_per_epoch=1).warm_up().finish_epoch()
    assert run.wait(100) == 0
    run.join(1)
    run.settle()
    assert [client.slot for client in run.state.clients] == [1]


def test_m2_an_expired_session_is_not_taken_and_its_session_key_is_dead() -> None:
    run = build_run(2, min_clients=2)
    transitions.join(run.state, run.now, *build_keys(1), expires_unix=run.now + 100)
    run.now += 100
    assert run.settle() == 0
    transitions.join(run.state, run.now, *build_keys(1), expires_unix=run.now + 100)
    run.warm_up()
    run.now += 100
    with expect_refusal(run.state, UnknownMember, "M1"):
        run.send(run.build_witness(1))
    transitions.witness(run.state, run.now, build_keys(1)[0], run.build_witness(1))
    run.send(run.build_witness(0))


def test_m3_struck_slots_wait_while_enough_others_are_there() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=9, late_limit=1, min_clients=2)
    run.run_round(held=0b011)
    assert run.state.clients[2].state is ClientState.DROPPED
    run.finish_epoch()
    run.join(0, 1, 2)
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1]


def test_m3_with_too_few_others_the_struck_count_too() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=9, late_limit=1, min_clients=2, init_min_clients=3)
    run.run_round(held=0b011)
    run.finish_epoch()
    run.join(0, 1, 2)
    slot = run.state.registry.slots[2]
    assert slot.active == run.state.registry.next_active + 1
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1, 2]
    assert slot.active == run.state.registry.next_active, "taken, it must join again like the others"


def test_m3_the_wait_is_over_when_its_epochs_have_passed() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=2, late_limit=1, min_clients=2)
    run.run_round(held=0b011)
    run.finish_epoch()
    run.join(0, 1, 2)
    run.warm_up().finish_epoch()
    run.join(0, 1)
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1, 2], "its join still stood"


# --- M4: leaving


def test_m4_withdrawing_in_a_round_takes_effect_at_its_close() -> None:
    run = build_training(4, rounds=1)
    withdraw(run, 3)
    client = run.state.clients[3]
    assert (client.state, client.exited_height) == (ClientState.WITHDRAWN, 1)
    assert run.state.current.members == 0b1111
    with expect_refusal(run.state, InvalidWithdraw, "M4"):
        withdraw(run, 3)
    run.run_round(silent={3})
    assert run.state.current.members == 0b0111
    assert run.state.clients[3].missed == 0


def test_m4_withdrawing_in_warmup_takes_the_join_back() -> None:
    run = build_run(3)
    run.form()
    run.show(2)
    withdraw(run, 2)
    assert run.state.registry.slots[2].active == 0
    assert run.state.epoch.ready_len == 0
    assert not run.state.clients[2].flags & 1


def test_m4_withdrawing_while_waiting_takes_the_join_back() -> None:
    run = build_run(3)
    withdraw(run, 2, member=999)
    assert run.state.registry.slots[2].active == 0
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1]


def test_m4_a_departure_from_the_epoch_before_is_no_departure_from_the_next() -> None:
    run = build_run(2, rounds_per_epoch=1).warm_up().finish_epoch()
    run.rejoin()
    with expect_refusal(run.state, WrongRound, "T7"):
        withdraw(run, 0, epoch=0)


def test_m4_what_cannot_be_withdrawn() -> None:
    run = build_run(2)
    with expect_refusal(run.state, UnknownMember):
        withdraw(run, 9)
    withdraw(run, 0)
    with expect_refusal(run.state, InvalidWithdraw, "M4"):
        withdraw(run, 0)
    run.form()
    with expect_refusal(run.state, UnknownMember, "M1"):
        withdraw(run, 0, member=0)
    with expect_refusal(run.state, UnknownMember):
        withdraw(run, 1, member=7)
    transitions.pause(run.state, run.now)
    with expect_refusal(run.state, Halted):
        withdraw(run, 1, member=0)


def test_m4_leaving_frees_a_slot_without_earnings_at_once() -> None:
    run = build_run(2)
    transitions.leave(run.state, run.now, build_keys(0)[0])
    assert run.state.registry.slots[0].state is FREE
    assert run.join(9) == [0]


def test_m4_a_member_that_leaves_withdraws_and_frees_its_slot_when_it_can_earn_no_more() -> None:
    run = build_training(3, rounds=2, rounds_per_epoch=3)
    transitions.leave(run.state, run.now, build_keys(2)[0])
    slot = run.state.registry.slots[2]
    assert run.state.clients[2].state is ClientState.WITHDRAWN
    assert slot.state is LEAVING
    run.finish_epoch()
    assert run.state.registry.slots[2].state is FREE


def test_m4_a_slot_with_earnings_waits_for_its_claim() -> None:
    run = build_run(3, rounds_per_epoch=2)
    transitions.process_rates(run.state, earning=150)
    run.warm_up()
    run.run_round()
    run.run_round()
    transitions.leave(run.state, run.now, build_keys(1)[0])
    run.finish_epoch()
    slot = run.state.registry.slots[1]
    assert (slot.state, slot.earned) == (LEAVING, 50)
    with expect_refusal(run.state, InvalidWithdraw, "leaving already"):
        transitions.leave(run.state, run.now, build_keys(1)[0])
    run.join(1)
    assert slot.state is JOINED, "it may think better of it"


def test_m4_leaving_after_having_departed_changes_the_slot_alone() -> None:
    run = build_training(3, rounds=1)
    withdraw(run, 2)
    height = run.state.clients[2].exited_height
    run.run_round(silent={2})
    transitions.leave(run.state, run.now, build_keys(2)[0])
    assert run.state.clients[2].exited_height == height
    assert run.state.registry.slots[2].state is LEAVING


def test_m4_in_an_abandoned_warmup_too_the_slot_is_freed() -> None:
    run = build_run(2, min_clients=2)
    run.form()
    transitions.leave(run.state, run.now, build_keys(0)[0])
    assert run.state.registry.slots[0].state is LEAVING
    run.settle()
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.registry.slots[0].state is FREE


def test_m4_only_who_has_a_slot_can_leave_it() -> None:
    run = build_training(2)
    with expect_refusal(run.state, UnknownMember):
        transitions.leave(run.state, run.now, build_keys(1)[1])
    eject(run, 1)
    with expect_refusal(run.state, Banned, "M6"):
        transitions.leave(run.state, run.now, build_keys(1)[0])


def test_m4_the_slot_that_is_idle_longest_is_reclaimed() -> None:
    run = build_run(4, rounds_per_epoch=1)
    run.warm_up().finish_epoch()
    assert not transitions.reclaim_slot(run.state, run.now), "none has been idle for a whole epoch"
    run.join(0, 1, 2)
    run.warm_up()
    assert not transitions.reclaim_slot(run.state, run.now), "the epoch is not over yet"
    run.finish_epoch()
    run.join(0, 1)
    assert transitions.reclaim_slot(run.state, run.now)
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, JOINED, JOINED, FREE]
    assert not transitions.reclaim_slot(run.state, run.now)
    run.warm_up().finish_epoch()
    run.join(0)
    transitions.reclaim_slot(run.state, run.now)
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, JOINED, FREE, FREE]


def test_m4_neither_banned_nor_waiting_slots_are_reclaimed() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=2, late_limit=1)
    run.run_round(held=0b011)
    eject(run, 1)
    run.finish_epoch()
    run.state.registry.slots[2].until += 4
    run.join(0, 2)
    for _ in range(3):
        run.warm_up().finish_epoch()
        run.join(0)
    assert not transitions.reclaim_slot(run.state, run.now)
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, BANNED, JOINED]


def test_m4_a_slot_whose_wait_ends_with_the_coming_epoch_is_waiting_still() -> None:
    run = build_training(2, rounds=0, rounds_per_epoch=1)
    run.finish_epoch()
    registry = run.state.registry
    idle, waiting = registry.slots
    idle.last_epoch, waiting.last_epoch, run.state.progress.epoch = 1, 0, 5
    waiting.active = registry.next_active
    assert find_reclaimable(run.state) == 0
    waiting.active -= 1
    assert find_reclaimable(run.state) == 1


# --- M9: a process that starts again


def test_m9_restarted_in_warmup_it_goes_on_as_that_member() -> None:
    run = build_run(2)
    run.form()
    run.show(0)
    with expect_refusal(run.state, DuplicateWitness, "K3"):
        run.show(0)
    run.show(1)
    assert run.settle() == 2


def test_m9_restarted_in_a_round_it_withdraws_and_joins_the_next_epoch() -> None:
    run = build_training(4, rounds=1, rounds_per_epoch=2)
    withdraw(run, 3)
    run.join(3)
    run.run_round(silent={3})
    run.finish_epoch()
    assert run.state.certified.step == 3, "nobody else loses anything"
    run.join(0, 1, 2, 3)
    run.warm_up()
    assert run.state.current.members == 0b1111


# --- R7, M6: equivocation


def test_r7_equivocation_ejects_and_takes_the_credits_of_the_epoch() -> None:
    run = build_run(4, rounds_per_epoch=30)
    transitions.join(run.state, run.now, *build_keys(3), 500)
    run.warm_up()
    run.run_round()
    run.run_round()
    assert run.state.epoch.credit_total == 4
    decided = run.state.rounds[1].agreed_held
    eject(run, 3)
    client, slot = run.state.clients[3], run.state.registry.slots[3]
    assert (client.state, client.credits, client.exited_height) == (ClientState.EJECTED, 0, 2)
    assert run.state.epoch.credit_total == 3
    assert (slot.state, slot.slashed, slot.stake) == (BANNED, 500, 0)
    assert run.state.rounds[1].agreed_held == decided == 0b1111, "a decided set never changes"


def test_r7_an_ejected_member_gets_no_credit_for_rounds_still_to_be_decided() -> None:
    run = build_training(4, rounds=1)
    eject(run, 3)
    round_ = run.run_round(silent={3}, held=0b1111)
    assert round_.agreed_held == 0b1111
    assert [client.credits for client in run.state.clients] == [1, 1, 1, 0]


def test_r7_who_has_departed_can_still_be_ejected_and_so_can_who_sits_in_cooldown() -> None:
    run = build_training(4, rounds=1, rounds_per_epoch=2)
    withdraw(run, 3)
    run.run_round(silent={3})
    eject(run, 3, height=0)
    assert run.state.clients[3].exited_height == 1
    list(run.run_rounds())
    assert run.state.run_state is RunState.COOLDOWN
    eject(run, 0, height=1)
    assert run.state.clients[0].state is ClientState.EJECTED


def test_m7_members_after_an_ejected_one_are_paid_as_those_before_it() -> None:
    run = build_run(4, rounds_per_epoch=3)
    transitions.process_rates(run.state, earning=90)
    run.warm_up()
    run.run_round()
    eject(run, 1)
    run.finish_epoch()
    earned = [slot.earned for slot in run.state.registry.slots]
    assert earned[0] == earned[2] == earned[3] > 0
    assert earned[1] == 0


def test_the_first_round_of_every_epoch_lies_first_in_the_ring() -> None:
    run = build_training(3, rounds_per_epoch=3)
    run.finish_epoch()
    run.rejoin()
    run.warm_up()
    state = run.state
    assert (state.progress.epoch, state.epoch.rounds_head, state.rounds[0].height) == (1, 0, 0)
    run.run_round()
    assert [round_.height for round_ in state.rounds[:2]] == [0, 1]


def test_m6_the_ejected_never_come_back() -> None:
    run = build_training(3, rounds_per_epoch=1)
    eject(run, 2)
    run.finish_epoch()
    with expect_refusal(run.state, Banned, "M6"):
        run.join(2)
    with expect_refusal(run.state, InvalidJoin, "M1"):
        transitions.join(run.state, run.now, build_hash("new"), build_keys(2)[1])


BAD_EVIDENCE: list[tuple[str, Callable[[Run], None], type[CoordinatorError]]] = [
    ("another epoch", lambda run: eject(run, 0, epoch=1), WrongRound),
    ("a round to come", lambda run: eject(run, 0, height=2), WrongRound),
    ("a negative round", lambda run: eject(run, 0, height=-1), WrongRound),
    ("no such member", lambda run: eject(run, 4), UnknownMember),
    ("a member counted from the end", lambda run: eject(run, -1), UnknownMember),
    ("ejected already", lambda run: eject(run, 3), InvalidEvidence),
]


@pytest.mark.parametrize(("call", "error"), [pytest.param(c, e, id=name) for name, c, e in BAD_EVIDENCE])
def test_r7_evidence_is_checked(call: Callable[[Run], None], error: type[CoordinatorError]) -> None:
    run = build_training(4, rounds=1)
    eject(run, 3)
    with expect_refusal(run.state, error):
        call(run)


def test_m4_nobody_withdraws_a_member_that_is_counted_from_the_end() -> None:
    run = build_training(3, rounds=1)
    with expect_refusal(run.state, UnknownMember):
        transitions.withdraw(run.state, run.now, build_keys(2)[1], run.state.progress.epoch, -1)


def test_r7_evidence_needs_rounds() -> None:
    run = build_run(2)
    run.form()
    with expect_refusal(run.state, NoActiveRound):
        eject(run, 0)
    transitions.pause(run.state, run.now)
    with expect_refusal(run.state, Halted):
        eject(run, 0)


# --- M7: credit and earnings


def test_m7_everyone_but_the_ejected_earns_by_good_rounds_and_the_rest_carries_over() -> None:
    run = build_run(4, rounds_per_epoch=3)
    transitions.process_rates(run.state, earning=100, slashing=7)
    run.warm_up()
    run.run_round()
    run.run_round()
    withdraw(run, 0)
    run.run_round(silent={0}, held=0b1111)
    eject(run, 3)
    run.finish_epoch()
    assert [client.credits for client in run.state.clients] == [3, 3, 3, 0]
    assert [slot.earned for slot in run.state.registry.slots] == [33, 33, 33, 0]
    assert [slot.slashed for slot in run.state.registry.slots] == [0, 0, 0, 7]
    assert run.state.registry.carry == 100 - 9 * 11


def test_m7_rates_hold_from_the_next_formation_on() -> None:
    run = build_training(2, rounds_per_epoch=1)
    transitions.process_rates(run.state, earning=10)
    run.finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [0, 0]
    run.rejoin()
    run.warm_up().finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [5, 5]


def test_m7_an_epoch_without_credit_carries_its_pool_over() -> None:
    run = build_run(2, rounds_per_epoch=1)
    transitions.process_rates(run.state, earning=10)
    run.warm_up()
    run.silent = {0, 1}
    run.run_round()
    run.run_round()
    assert run.state.run_state is RunState.COOLDOWN
    run.silent = set()
    run.wait(5)
    assert run.state.registry.carry == 10
    run.rejoin()
    run.warm_up().finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [10, 10]
    assert run.state.registry.carry == 0


def test_m7_sums_stay_within_their_places_on_record() -> None:
    run = build_run(1, rounds_per_epoch=1)
    transitions.process_rates(run.state, earning=U64_MAX)
    run.state.registry.slots[0].earned = 5
    run.state.registry.carry = 5
    run.warm_up().finish_epoch()
    assert run.state.registry.slots[0].earned == U64_MAX


def test_rates_that_do_not_fit_are_refused_and_repeats_change_nothing() -> None:
    run = build_run(1)
    with expect_refusal(run.state, ConfigRefused, "M7"):
        transitions.process_rates(run.state, earning=U64_MAX + 1)
    with expect_refusal(run.state, ConfigRefused, "M7"):
        transitions.process_rates(run.state, slashing=-1)
    transitions.process_rates(run.state, 5, 6)
    before = encode_state(run.state)
    transitions.process_rates(run.state, 5)
    assert encode_state(run.state) == before


def test_h5_a_whole_good_epoch_clears_a_strike() -> None:
    run = build_run(2, rounds_per_epoch=2)
    for slot in run.state.registry.slots:
        slot.strikes, slot.until = 1, 2
    run.warm_up().finish_epoch()
    assert [(slot.strikes, slot.until) for slot in run.state.registry.slots] == [(0, 0), (0, 0)]


def test_m7_a_batch_is_credited_once() -> None:
    run = build_training(3, rounds_per_epoch=3)
    closed = list(run.run_rounds())
    credited = sum(round_.agreed_held.bit_count() for round_ in closed)
    assert credited == run.state.epoch.credit_total == 9
    assert all(round_.flags & RoundFlag.CLOSED for round_ in closed)


def test_next_active_stays_at_its_limit_instead_of_wrapping() -> None:
    run = build_run(1)
    run.state.registry.next_active = run.state.registry.slots[0].active = 65_535
    run.warm_up()
    assert run.state.registry.next_active == 65_535
    encode_state(run.state)
