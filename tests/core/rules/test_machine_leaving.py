"""Leaving, slots given up and reclaimed, and what of them stays: M4, H5."""

import pytest
from kits.runs import Run, build_run, build_training, expect_refusal

from psyche.core.rules.membership import find_reclaimable
from psyche.core.state.errors import Banned, ClientsFull, Halted, InvalidWithdraw, UnknownMember, WrongRound
from psyche.core.state.messages import Join, LeaveRun, Pause, ReclaimSlot, SetRates
from psyche.core.state.roster import find_slot
from psyche.core.state.state import ZERO32, ClientState, RunState, SlotState
from psyche.testing.builders import build_keys

FREE, JOINED, LEAVING, BANNED, LEFT = list(SlotState)


# --- M4: leaving


def test_m4_withdrawing_in_a_round_takes_effect_at_its_close() -> None:
    run = build_training(4, rounds=1)
    run.withdraw(3)
    client = run.state.clients[3]
    assert (client.state, client.exited_height) == (ClientState.WITHDRAWN, 1)
    assert run.state.current.members == 0b1111
    with expect_refusal(run.state, InvalidWithdraw, "M4"):
        run.withdraw(3)
    run.run_round(silent={3})
    assert run.state.current.members == 0b0111
    assert run.state.clients[3].missed == 0


def test_m4_withdrawing_in_warmup_takes_the_join_back() -> None:
    run = build_run(3)
    run.form()
    run.show(2)
    run.withdraw(2)
    assert run.state.registry.slots[2].active == 0
    assert run.state.epoch.ready_len == 0
    assert not run.state.clients[2].flags & 1


def test_m4_withdrawing_while_waiting_takes_the_join_back() -> None:
    run = build_run(3)
    run.withdraw(2, member=999)
    assert run.state.registry.slots[2].active == 0
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1]


def test_m4_a_departure_from_the_epoch_before_is_no_departure_from_the_next() -> None:
    run = build_run(2, rounds_per_epoch=1).warm_up().finish_epoch()
    run.rejoin()
    with expect_refusal(run.state, WrongRound, "T7"):
        run.withdraw(0, epoch=0)


def test_m4_what_cannot_be_withdrawn() -> None:
    run = build_run(2)
    with expect_refusal(run.state, UnknownMember):
        run.withdraw(9)
    run.withdraw(0)
    with expect_refusal(run.state, InvalidWithdraw, "M4"):
        run.withdraw(0)
    run.form()
    with expect_refusal(run.state, UnknownMember, "M1"):
        run.withdraw(0, member=0)
    with expect_refusal(run.state, UnknownMember):
        run.withdraw(1, member=7)
    run.apply(Pause())
    with expect_refusal(run.state, Halted):
        run.withdraw(1, member=0)


def test_m4_leaving_frees_a_slot_without_earnings_at_once() -> None:
    run = build_run(2)
    run.leave(0)
    assert run.state.registry.slots[0].state is FREE
    assert run.join(9) == [0]


def test_m4_a_member_that_leaves_withdraws_and_frees_its_slot_when_it_can_earn_no_more() -> None:
    run = build_training(3, rounds=2, rounds_per_epoch=3)
    run.leave(2)
    slot = run.state.registry.slots[2]
    assert run.state.clients[2].state is ClientState.WITHDRAWN
    assert slot.state is LEAVING
    run.finish_epoch()
    assert run.state.registry.slots[2].state is FREE


def test_m4_a_slot_with_earnings_waits_for_its_claim() -> None:
    run = build_run(3, rounds_per_epoch=2)
    run.apply(SetRates(earning=150))
    run.warm_up()
    run.run_round()
    run.run_round()
    run.leave(1)
    run.finish_epoch()
    slot = run.state.registry.slots[1]
    assert (slot.state, slot.earned) == (LEAVING, 50)
    with expect_refusal(run.state, InvalidWithdraw, "leaving already"):
        run.leave(1)
    run.join(1)
    assert slot.state is JOINED, "it may think better of it"


def test_m4_leaving_after_having_departed_changes_the_slot_alone() -> None:
    run = build_training(3, rounds=1)
    run.withdraw(2)
    height = run.state.clients[2].exited_height
    run.run_round(silent={2})
    run.leave(2)
    assert run.state.clients[2].exited_height == height
    assert run.state.registry.slots[2].state is LEAVING


def test_m4_in_an_abandoned_warmup_too_the_slot_is_freed() -> None:
    run = build_run(2, min_clients=2)
    run.form()
    run.leave(0)
    assert run.state.registry.slots[0].state is LEAVING
    run.settle()
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert run.state.registry.slots[0].state is FREE


def test_m4_only_who_has_a_slot_can_leave_it() -> None:
    run = build_training(2)
    with expect_refusal(run.state, UnknownMember):
        run.apply(LeaveRun(), build_keys(1)[1])
    run.eject(1)
    with expect_refusal(run.state, Banned, "M6"):
        run.leave(1)


def test_m4_the_slot_that_is_idle_longest_is_reclaimed() -> None:
    run = build_run(4, rounds_per_epoch=1)
    run.warm_up().finish_epoch()
    assert not run.apply(ReclaimSlot()), "none has been idle for a whole epoch"
    run.join(0, 1, 2)
    run.warm_up()
    assert not run.apply(ReclaimSlot()), "the epoch is not over yet"
    run.finish_epoch()
    run.join(0, 1)
    assert run.apply(ReclaimSlot())
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, JOINED, JOINED, FREE]
    assert not run.apply(ReclaimSlot())
    run.warm_up().finish_epoch()
    run.join(0)
    run.apply(ReclaimSlot())
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, JOINED, FREE, FREE]


def test_m4_waiting_slots_and_those_of_the_epoch_before_are_not_reclaimed() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=2, late_limit=1)
    run.run_round(held=0b011)
    run.finish_epoch()
    run.state.registry.slots[1].earned = 1
    run.state.registry.slots[2].until += 4
    run.join(0, 2)
    for _ in range(3):
        run.warm_up().finish_epoch()
        run.join(0)
    assert not run.apply(ReclaimSlot())
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, JOINED, JOINED]


def test_m6_bans_do_not_keep_newcomers_out_for_good() -> None:
    run = build_training(3, rounds=1, rounds_per_epoch=1, min_clients=1)
    run.eject(1)
    run.finish_epoch()
    assert not run.apply(ReclaimSlot()), "its epoch is just over"
    run.join(0, 2)
    run.warm_up().finish_epoch()
    with expect_refusal(run.state, Banned, "M6"):
        run.join(1)
    assert run.apply(ReclaimSlot())
    assert [slot.state for slot in run.state.registry.slots] == [JOINED, FREE, JOINED]
    run.join(1)
    assert not run.state.registry.slots[1].proven, "a newcomer like any other"


def test_m6_a_ban_is_reclaimed_after_idle_newcomers_before_proven_members_and_never_with_earnings() -> None:
    run = build_training(3, rounds=0, rounds_per_epoch=1)
    run.finish_epoch()
    proven, banned, newcomer = run.state.registry.slots
    run.state.progress.epoch = 5
    proven.last_epoch, banned.last_epoch, newcomer.last_epoch = 0, 2, 3
    banned.state, banned.active, newcomer.proven = BANNED, 0, False
    assert find_reclaimable(run.state) == 2
    newcomer.last_epoch = 4
    assert find_reclaimable(run.state) == 1
    banned.earned = 1
    assert find_reclaimable(run.state) == 0
    banned.earned, banned.proven = 0, False
    assert find_reclaimable(run.state) == 1
    newcomer.last_epoch = 3
    assert find_reclaimable(run.state) == 2


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


def test_m4_a_slot_with_a_running_wait_is_reclaimed_after_all_others() -> None:
    run = build_training(2, rounds=0, rounds_per_epoch=1)
    run.finish_epoch()
    registry = run.state.registry
    idle, waiting = registry.slots
    idle.last_epoch, waiting.last_epoch, run.state.progress.epoch = 3, 0, 5
    waiting.strikes, waiting.until = 1, registry.next_active + 1
    assert find_reclaimable(run.state) == 0
    waiting.until -= 1
    assert find_reclaimable(run.state) == 1, "the wait is over"


def test_m4_a_slot_that_never_had_a_credit_is_reclaimed_before_all_that_had_one() -> None:
    run = build_training(2, rounds=0, rounds_per_epoch=1)
    run.finish_epoch()
    proven, newcomer = run.state.registry.slots
    proven.last_epoch, newcomer.last_epoch, run.state.progress.epoch = 0, 3, 5
    newcomer.proven, newcomer.fruitless, newcomer.until = False, 3, run.state.registry.next_active + 8
    assert find_reclaimable(run.state) == 1, "a wait for epochs that came to nothing keeps no slot"
    newcomer.strikes = 1
    assert find_reclaimable(run.state) == 1
    newcomer.earned = 1
    assert find_reclaimable(run.state) == 0


def test_m4_of_two_newcomers_the_one_idle_longer_is_reclaimed_whatever_wait_they_have() -> None:
    run = build_training(2, rounds=0, rounds_per_epoch=1)
    run.finish_epoch()
    fresh, fruitless = run.state.registry.slots
    fresh.proven = fruitless.proven = False
    fresh.last_epoch, fruitless.last_epoch, run.state.progress.epoch = 3, 2, 5
    fruitless.fruitless, fruitless.until = 1, run.state.registry.next_active + 2
    assert find_reclaimable(run.state) == 1


# --- H5: strikes stay with the signer


def build_struck(**config: object) -> Run:
    """Member 2 of three has just been dropped for lateness: one strike, one epoch to wait."""
    run = build_training(3, rounds=1, rounds_per_epoch=9, late_limit=1, min_clients=2, **config)
    run.run_round(held=0b011)
    assert run.state.clients[2].state is ClientState.DROPPED
    return run


@pytest.mark.parametrize("when", ["in the epoch", "after it"])
def test_h5_leaving_and_joining_again_wipes_no_strike(when: str) -> None:
    run = build_struck()
    until = run.state.registry.slots[2].until
    if when == "in the epoch":
        run.leave(2)
    run.finish_epoch()
    if when == "after it":
        run.leave(2)
    left = run.state.registry.slots[2]
    assert (left.state, left.signer, left.p2p) == (LEFT, build_keys(2)[0], ZERO32)
    assert run.join(0, 1, 2) == [0, 1, 2]
    slot = run.state.registry.slots[2]
    assert (slot.state, slot.strikes, slot.until, slot.active) == (JOINED, 1, until, until)
    run.form()
    assert [client.slot for client in run.state.clients] == [0, 1]


def test_h5_a_slot_that_was_left_is_no_place_any_more() -> None:
    run = build_struck()
    run.finish_epoch()
    run.leave(2)
    signer, p2p = build_keys(2)
    assert find_slot(run.state, signer) is None
    assert find_slot(run.state, p2p) is None
    with expect_refusal(run.state, UnknownMember):
        run.leave(2)
    with expect_refusal(run.state, UnknownMember):
        run.withdraw(2)
    run.apply(Join(p2p), build_keys(8)[0])
    assert find_slot(run.state, p2p) == 3, "M1: its session key is free"
    assert not run.apply(ReclaimSlot())


def test_h5_in_a_full_registry_a_newcomer_takes_the_left_slot_whose_wait_ends_first() -> None:
    run = build_run(256)
    for number, until in ((40, 9), (7, 3), (200, 3), (99, 0)):
        slot = run.state.registry.slots[number]
        slot.strikes, slot.until = 1, until
        run.leave(number)
    assert run.join(300, 301, 302, 303) == [99, 7, 200, 40]
    assert [run.state.registry.slots[n].strikes for n in (99, 7, 200, 40)] == [0] * 4
    with expect_refusal(run.state, ClientsFull):
        run.join(304)
    assert run.state.registry.slots[7].signer == build_keys(301)[0]


def test_h5_what_can_be_had_elsewhere_leaves_the_strikes_of_others_alone() -> None:
    run = build_struck()
    run.finish_epoch()
    run.leave(2)
    assert run.join(9) == [3]
    run.leave(9)
    assert run.state.registry.slots[3].state is FREE
    assert run.join(10) == [3]


def test_h5_who_leaves_without_strikes_leaves_nothing_behind() -> None:
    run = build_struck()
    run.finish_epoch()
    run.leave(1)
    assert run.state.registry.slots[1].state is FREE
