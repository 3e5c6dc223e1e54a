"""When a client on a chain ticks, which of its messages are worth sending, and when it joins again."""

import random
from dataclasses import replace

import pytest
from sim.chain_kit import START, build_chain, get_key, get_state

from psyche.backends.solana.member.link import ChainTime, Reading
from psyche.backends.solana.member.logic import (
    JOIN_VALID_S,
    RENEW_BEFORE_S,
    TICKERS,
    TRY_AGAIN_S,
    AdmissionCheck,
    Advice,
    Ticker,
    find_tickers,
    get_entropy,
    is_renewal_due,
    is_tick_due,
)
from psyche.backends.solana.member.view import RecordView
from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import encode_state
from psyche.core.rules.apply import apply
from psyche.core.state.errors import CoordinatorError
from psyche.core.state.messages import Join, Message, Tick, WarmupWitness, Withdraw
from psyche.core.state.state import Coordinator, RunState

NOW = START + 10
DIGEST = b"\5" * 32


def build_waiting(members: int, expires_unix: int = 0) -> Coordinator:
    """A run in which so many have joined."""
    state = get_state(build_chain(init_min_clients=max(2, members)))
    for number in range(1, members + 1):
        wallet, session = get_key(number)
        apply(state, NOW, 1, wallet, Join(session, expires_unix))
    return state


def build_warmup(members: int) -> Coordinator:
    """A run whose first epoch has formed."""
    state = build_waiting(members)
    now, slot = NOW, 1
    while state.run_state is not RunState.WARMUP:
        now, slot = now + 10, slot + 10
        apply(state, now, slot, get_key(1)[0], Tick(get_entropy(state, slot)))
    return state


def view_record(state: Coordinator, slot: int = 1) -> RecordView:
    view = RecordView(0)
    view.take(Reading("one", slot, encode_state(state)))
    return view


def check(state: Coordinator, message: Message, number: int = 1, slot: int = 1, unix: int = NOW) -> Advice:
    return AdmissionCheck(get_key(number)[0], view_record(state, slot), ChainTime(slot, unix)).check(message)


# --- entropy and ticks ----------------------------------------------------------------------------


def test_a_tick_that_needs_a_hash_is_due_only_after_the_armed_slot() -> None:
    state = build_waiting(1)
    state.current.entropy_slot = 100
    assert get_entropy(state, 100) is None
    assert isinstance(get_entropy(state, 101), bytes)
    assert get_entropy(state, 100 + 512) != EXPIRED
    assert get_entropy(state, 100 + 513) is EXPIRED


@pytest.mark.parametrize("slot", [0, 8, 9, 10, 12, 600])
@pytest.mark.parametrize("ready", [0, 1, 2])
@pytest.mark.parametrize("later_s", [0, 1, 29, 31, 1000])
def test_the_admission_check_says_of_a_tick_what_a_copy_of_the_record_does(slot: int, ready: int, later_s: int) -> None:
    state = build_warmup(2)
    for member in range(ready):
        apply(state, NOW + 10, 10, get_key(member + 1)[1], WarmupWitness(0, member, DIGEST))
    state.current.entropy_slot = 9 if ready else 0
    view, time = view_record(state, slot), ChainTime(slot, NOW + 10 + later_s)
    expected = is_tick_due(view.copy_state(), get_key(1)[0], time)
    assert [AdmissionCheck(get_key(1)[0], view).is_tick_due(time) for _ in range(2)] == [expected, expected]
    assert encode_state(view.state) == view.raw


def test_a_client_that_drew_no_asks_for_no_time_until_it_may_draw_again() -> None:
    state, wallet = build_warmup(8), get_key(1)[0]
    ticker = Ticker(wallet, random.Random(1))
    assert not ticker.is_waiting(state.nonce, 0.0)
    ticker.decide(state, 0.0)
    assert ticker.is_waiting(state.nonce, TRY_AGAIN_S - 0.1)
    assert not ticker.is_waiting(state.nonce, TRY_AGAIN_S)
    assert not ticker.is_waiting(state.nonce + 1, 0.0)


def draw(members: int, tries: int, runs: int = 400) -> list[float]:
    """The share of runs in which one member has ticked after so many tries."""
    state, wallet = build_warmup(members), get_key(1)[0]
    shares = [0.0] * tries
    for seed in range(runs):
        ticker = Ticker(wallet, random.Random(seed))
        for number in range(tries):
            if ticker.decide(state, number * TRY_AGAIN_S):
                shares[number] += 1 / runs
    return shares


def test_two_members_of_many_tick_and_more_only_after_no_tick_has_shown() -> None:
    first, second, third, fourth = draw(members=16, tries=4)
    assert abs(first - TICKERS / 16) < 0.06
    assert first < second < third < fourth == pytest.approx(1.0)
    assert draw(members=2, tries=1, runs=5) == [pytest.approx(1.0)]


def test_between_two_tries_a_client_waits_until_a_tick_can_have_shown() -> None:
    state, ticker = build_warmup(2), Ticker(get_key(1)[0], random.Random(1))
    assert ticker.decide(state, 0.0)
    assert not ticker.decide(state, TRY_AGAIN_S / 2)
    assert ticker.decide(state, TRY_AGAIN_S)
    state.nonce += 1
    assert ticker.decide(state, TRY_AGAIN_S), "another record, another tick"


def test_a_client_that_is_no_member_ticks_only_if_the_members_do_not() -> None:
    state, ticker = build_warmup(2), Ticker(get_key(9)[0], random.Random(1))
    assert not ticker.decide(state, 0.0)
    assert not ticker.decide(state, TRY_AGAIN_S)
    assert ticker.decide(state, 2 * TRY_AGAIN_S)


def test_between_epochs_those_that_wait_tick_and_not_the_last_members() -> None:
    state = build_warmup(2)
    assert find_tickers(state) == {get_key(1)[0], get_key(2)[0]}
    state.run_state = RunState.WAITING_FOR_MEMBERS
    state.registry.slots = state.registry.slots[:1]
    assert find_tickers(state) == {get_key(1)[0]}


# --- messages -------------------------------------------------------------------------------------


def test_a_message_that_makes_a_tick_due_takes_it_along() -> None:
    state = build_warmup(2)
    apply(state, NOW, 5, get_key(1)[0], WarmupWitness(0, 0, DIGEST))
    assert check(state, WarmupWitness(0, 1, DIGEST), number=2, slot=5) is Advice.SEND_WITH_TICK


def test_no_tick_goes_along_where_it_needs_a_hash_that_is_not_there_yet() -> None:
    state = build_warmup(2)
    apply(state, NOW, 5, get_key(1)[0], WarmupWitness(0, 0, DIGEST))
    apply(state, NOW, 5, get_key(2)[0], WarmupWitness(0, 1, DIGEST))
    apply(state, NOW, 5, get_key(1)[0], Tick(None))
    assert state.current.entropy_slot == 9, "it is armed"
    assert not is_tick_due(state, get_key(1)[0], ChainTime(9, NOW))
    assert is_tick_due(state, get_key(1)[0], ChainTime(10, NOW))


def test_a_halted_run_needs_no_tick_and_refuses_messages() -> None:
    state = replace(build_warmup(2), run_state=RunState.PAUSED)
    assert not is_tick_due(state, get_key(1)[0], ChainTime(10, NOW + 1000))
    with pytest.raises(CoordinatorError):
        check(state, WarmupWitness(0, 0, DIGEST))


def test_what_is_on_record_is_done_and_what_is_too_late_refused() -> None:
    state = build_warmup(2)
    apply(state, NOW, 5, get_key(1)[0], WarmupWitness(0, 0, DIGEST))
    assert check(state, WarmupWitness(0, 0, DIGEST)) is Advice.DONE
    with pytest.raises(CoordinatorError):
        check(state, WarmupWitness(1, 0, DIGEST))
    assert check(state, Withdraw(0, 1), number=2) in (Advice.SEND, Advice.SEND_WITH_TICK)


def test_a_message_of_a_round_that_is_over_is_of_no_use_any_more() -> None:
    mine = AdmissionCheck(get_key(1)[0], view_record(build_warmup(2)), ChainTime(5, NOW))
    assert not mine.is_over(WarmupWitness(0, 0, DIGEST))
    assert mine.is_over(WarmupWitness(4, 0, DIGEST))


def test_in_doubt_nothing_counts_as_over() -> None:
    state = build_warmup(2)
    view = view_record(state)
    state.state_start_unix += 1
    view.take(Reading("two", 1, encode_state(state)))
    assert not AdmissionCheck(get_key(1)[0], view).is_over(WarmupWitness(4, 0, DIGEST))


# --- joins ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left_s", "due"), [(JOIN_VALID_S, False), (RENEW_BEFORE_S, False), (44, True), (-50, True)])
def test_a_join_is_renewed_when_it_expires_soon(left_s: int, *, due: bool) -> None:
    state = build_waiting(1, expires_unix=NOW + left_s)
    wallet, session = get_key(1)
    assert is_renewal_due(state, wallet, session, NOW) is due
    assert check(state, Join(session)) is (Advice.SEND if due else Advice.DONE)


def test_no_join_is_renewed_without_an_expiry_under_another_key_or_in_a_paused_run() -> None:
    wallet, session = get_key(1)
    assert not is_renewal_due(build_waiting(1), wallet, session, NOW)
    expired = build_waiting(1, expires_unix=NOW - 1)
    assert not is_renewal_due(expired, wallet, b"\7" * 32, NOW)
    assert not is_renewal_due(replace(expired, run_state=RunState.PAUSED), wallet, session, NOW)
