"""Equivocation, credit and earnings: R7, M6, M7, H5."""

from collections.abc import Callable

import pytest
from kits.runs import Run, build_run, build_training, expect_refusal

from psyche.core.encoding.account import encode_state
from psyche.core.state.errors import (
    Banned,
    ConfigRefused,
    CoordinatorError,
    InvalidEvidence,
    InvalidJoin,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.limits import U64_MAX
from psyche.core.state.messages import Join, SetRates
from psyche.core.state.state import ClientState, RunState, SlotState
from psyche.testing.builders import build_hash, build_keys

BANNED = SlotState.BANNED


# --- R7, M6: equivocation


def test_r7_equivocation_ejects_and_takes_the_credits_of_the_epoch() -> None:
    run = build_run(4, rounds_per_epoch=30)
    run.state.registry.slots[3].stake = 500
    run.warm_up()
    run.run_round()
    run.run_round()
    assert run.state.epoch.credit_total == 4
    decided = run.state.rounds[1].agreed_held
    run.eject(3)
    client, slot = run.state.clients[3], run.state.registry.slots[3]
    assert (client.state, client.credits, client.exited_height) == (ClientState.EJECTED, 0, 2)
    assert run.state.epoch.credit_total == 3
    assert (slot.state, slot.slashed, slot.stake) == (BANNED, 500, 0)
    assert run.state.rounds[1].agreed_held == decided == 0b1111, "a decided set never changes"


def test_r7_who_has_departed_can_still_be_ejected_and_so_can_who_sits_in_cooldown() -> None:
    run = build_training(4, rounds=1, rounds_per_epoch=2)
    run.withdraw(3)
    run.run_round(silent={3})
    run.eject(3, height=0)
    assert run.state.clients[3].exited_height == 1
    list(run.run_rounds())
    assert run.state.run_state is RunState.COOLDOWN
    run.eject(0, height=1)
    assert run.state.clients[0].state is ClientState.EJECTED


def test_m6_the_ejected_never_come_back() -> None:
    run = build_training(3, rounds_per_epoch=1)
    run.eject(2)
    run.finish_epoch()
    with expect_refusal(run.state, Banned, "M6"):
        run.join(2)
    with expect_refusal(run.state, InvalidJoin, "M1"):
        run.apply(Join(build_keys(2)[1]), build_hash("new"))


BAD_EVIDENCE: list[tuple[str, Callable[[Run], None], type[CoordinatorError]]] = [
    ("another epoch", lambda run: run.eject(0, epoch=1), WrongRound),
    ("a round to come", lambda run: run.eject(0, height=2), WrongRound),
    ("a negative round", lambda run: run.eject(0, height=-1), WrongRound),
    ("no such member", lambda run: run.eject(4), UnknownMember),
    ("a member counted from the end", lambda run: run.eject(-1), UnknownMember),
    ("ejected already", lambda run: run.eject(3), InvalidEvidence),
]


@pytest.mark.parametrize(("call", "error"), [pytest.param(c, e, id=name) for name, c, e in BAD_EVIDENCE])
def test_r7_evidence_is_checked(call: Callable[[Run], None], error: type[CoordinatorError]) -> None:
    run = build_training(4, rounds=1)
    run.eject(3)
    with expect_refusal(run.state, error):
        call(run)


# --- M7: credit and earnings


def test_m7_everyone_but_the_ejected_earns_by_good_rounds_and_the_rest_carries_over() -> None:
    run = build_run(4, rounds_per_epoch=3)
    run.apply(SetRates(earning=100, slashing=7))
    run.warm_up()
    run.run_round()
    run.run_round()
    run.withdraw(0)
    run.run_round(silent={0}, held=0b1111)
    run.eject(3)
    run.finish_epoch()
    assert [client.credits for client in run.state.clients] == [3, 3, 3, 0]
    assert [slot.earned for slot in run.state.registry.slots] == [33, 33, 33, 0]
    assert [slot.slashed for slot in run.state.registry.slots] == [0, 0, 0, 7]
    assert run.state.registry.carry == 100 - 9 * 11


def test_m7_rates_hold_from_the_next_formation_on() -> None:
    run = build_training(2, rounds_per_epoch=1)
    run.apply(SetRates(earning=10))
    run.finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [0, 0]
    run.rejoin()
    run.warm_up().finish_epoch()
    assert [slot.earned for slot in run.state.registry.slots] == [5, 5]


def test_m7_an_epoch_without_credit_carries_its_pool_over() -> None:
    run = build_run(2, rounds_per_epoch=1)
    run.apply(SetRates(earning=10))
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


def test_rates_that_do_not_fit_are_refused_and_repeats_change_nothing() -> None:
    run = build_run(1)
    with expect_refusal(run.state, ConfigRefused, "M7"):
        run.apply(SetRates(earning=U64_MAX + 1))
    with expect_refusal(run.state, ConfigRefused, "M7"):
        run.apply(SetRates(slashing=-1))
    run.apply(SetRates(5, 6))
    before = encode_state(run.state)
    run.apply(SetRates(5))
    assert encode_state(run.state) == before
    run.apply(SetRates(slashing=7))
    registry = run.state.registry
    assert (registry.future_earning_rate, registry.future_slashing_rate) == (5, 7), "what is not named stays"
