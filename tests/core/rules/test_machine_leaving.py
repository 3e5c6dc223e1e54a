"""Leaving, slots given up and reclaimed, and what of them stays: M4, H5."""

from typing import Any

import pytest
from kits.runs import Run, build_run, build_training, expect_refusal

from psyche.core.rules.membership import find_reclaimable
from psyche.core.state.errors import Banned, ClientsFull, Halted, InvalidWithdraw, UnknownMember
from psyche.core.state.messages import Join, Pause, ReclaimSlot, SetRates
from psyche.core.state.roster import find_slot
from psyche.core.state.state import ZERO32, ClientState, Coordinator, Progress, Registry, Slot, SlotState
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


PROVEN = {"proven": True, "last_epoch": 0}
NEWCOMER = {"proven": False, "last_epoch": 3}
BAN = {"proven": True, "last_epoch": 2, "state": BANNED, "active": 0}


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [
        pytest.param({"last_epoch": 0}, {"last_epoch": 1}, 0, id="the one idle longest"),
        pytest.param({"last_epoch": 0, "active": 3}, {"last_epoch": 1}, 1, id="not one that waits for the next epoch"),
        pytest.param({"last_epoch": 0, "strikes": 1, "until": 4}, {"last_epoch": 3}, 1, id="a running wait last"),
        pytest.param({"last_epoch": 0, "strikes": 1, "until": 3}, {"last_epoch": 3}, 0, id="a wait that is over"),
        pytest.param(PROVEN, NEWCOMER, 1, id="one without a credit first"),
        pytest.param(PROVEN, {**NEWCOMER, "fruitless": 3, "until": 11}, 1, id="fruitless epochs keep no slot"),
        pytest.param(PROVEN, {**NEWCOMER, "strikes": 1, "until": 11}, 1, id="nor do strikes of a newcomer"),
        pytest.param(PROVEN, {**NEWCOMER, "earned": 1}, 0, id="never one with earnings"),
        pytest.param(BAN, NEWCOMER, 1, id="a ban after idle newcomers"),
        pytest.param(BAN, {**NEWCOMER, "last_epoch": 4}, 0, id="a ban before one of the last epoch"),
        pytest.param(PROVEN, BAN, 1, id="a ban before proven members"),
        pytest.param({**BAN, "earned": 1}, PROVEN, 1, id="no ban with earnings"),
    ],
)
def test_m4_m6_of_two_idle_slots_one_is_reclaimed(first: dict[str, Any], second: dict[str, Any], number: int) -> None:
    slots = [Slot(**{"state": JOINED, "active": 1, **one}) for one in (first, second)]
    registry = Registry(next_active=3, slots=slots)
    assert find_reclaimable(Coordinator(registry=registry, progress=Progress(epoch=5))) == number


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
