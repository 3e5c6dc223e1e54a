"""H1 to H5: who is gone, late or good, and what follows. A1 and B18 with them."""

from itertools import permutations

import pytest
from kits.runs import Run, build_training, expect_refusal

from psyche.core.committee.elections import get_witnesses
from psyche.core.rules.health import compute_judgement, get_idle_roles, process_strike, process_strike_clearing
from psyche.core.state.errors import (
    Halted,
    InvalidHealthCheck,
    InvalidRunState,
    NoActiveRound,
    UnknownMember,
    WrongRound,
)
from psyche.core.state.messages import HealthCheck
from psyche.core.state.state import Client, ClientState, RunState, Slot, StopReason
from psyche.core.state.timeline import get_attested_round
from psyche.testing.builders import build_keys

HEALTHY, DROPPED = ClientState.HEALTHY, ClientState.DROPPED


def judge(run: Run, held: list[int], heard: list[int] | None = None) -> tuple[int, int, int]:
    """The judgement of the running round, given each witness's bits: absent, late, good."""
    for member, bits in enumerate(held):
        extra = {} if heard is None else {"heard": heard[member]}
        run.send(run.build_witness(member, held=bits, **extra))
    judgement = compute_judgement(run.state, get_attested_round(run.state))
    return judgement.absent, judgement.late, judgement.good


# --- H1


def test_h1_absent_is_who_q_witnesses_did_not_hear() -> None:
    assert judge(build_training(rounds=1), [0b1111] * 4, [0b0111] * 3 + [0b1111]) == (0b1000, 0, 0b0111)


def test_h1_late_is_who_was_heard_and_did_not_deliver_to_q() -> None:
    assert judge(build_training(rounds=1), [0b0111] * 3 + [0b1111]) == (0, 0b1000, 0b0111)


def test_h1_nobody_is_excused_where_everybody_trains() -> None:
    assert judge(build_training(rounds=1), [0b1110] * 3 + [0b1111]) == (0, 0b0001, 0b1110)


def test_h1_between_q_and_q_there_is_no_judgement() -> None:
    assert judge(build_training(rounds=1), [0b0111] * 2 + [0b1111] * 2) == (0, 0, 0b0111)


def test_h1_absence_comes_before_everything() -> None:
    assert judge(build_training(rounds=1), [0b1111] * 4, [0b0111] * 4) == (0b1000, 0, 0b0111)


def test_h1_fewer_than_q_liars_cannot_accuse() -> None:
    assert judge(build_training(rounds=1), [0, 0, 0b1111, 0b1111], [0, 0, 0b1111, 0b1111]) == (0, 0, 0)


def test_h1_where_nothing_was_due_nobody_is_late_or_good() -> None:
    assert judge(build_training(rounds=0), [0] * 4) == (0, 0, 0)


def test_h1_who_has_departed_is_not_judged() -> None:
    run = build_training(rounds=1)
    run.state.clients[3].state = ClientState.WITHDRAWN
    assert judge(run, [0b0111] * 3, [0b0111] * 3) == (0, 0, 0b0111)


# --- H2, A1


def test_h2_a_crash_is_out_after_two_rounds() -> None:
    run = build_training(rounds=1)
    run.silent = {3}
    run.run_round()
    client = run.state.clients[3]
    assert (client.missed, client.state, client.good_streak) == (1, HEALTHY, 0)
    round_ = run.run_round()
    assert (client.missed, client.state, client.exited_height) == (2, DROPPED, round_.height + 1)
    assert run.state.current.members == 0b1111, "E1: the close came after the seed of this round was armed"
    run.run_round()
    assert run.state.current.members == 0b0111


def test_h2_one_round_heard_again_forgives_absence() -> None:
    run = build_training(rounds=1)
    run.run_round(silent={3}, held=0b1111)
    assert run.state.clients[3].missed == 1
    run.run_round()
    assert run.state.clients[3].missed == 0


def test_h2_without_a_judgement_nothing_is_forgiven() -> None:
    run = build_training(rounds=1)
    client = run.state.clients[3]
    client.missed, client.late = 1, 2
    for member in range(4):
        run.send(run.build_witness(member, held=0b1111 if member < 2 else 0b0111))
    run.settle()
    assert run.state.current.height == 2
    assert (client.missed, client.late, client.state) == (1, 2, HEALTHY)


def test_h1_a_tie_breaker_owes_nothing_without_verifiers_too() -> None:
    run = build_training(rounds=1)
    round_ = run.state.current
    assert get_idle_roles(round_, run.state.config) == 0
    round_.tie_breaker_tasks = 1
    assert get_idle_roles(round_, run.state.config).bit_count() == 1


def test_h2_a_gray_failure_is_out_after_three_rounds_without_credit() -> None:
    run = build_training(rounds=0)
    run.run_round()
    client = run.state.clients[3]
    for late in (1, 2):
        run.run_round(held=0b0111)
        assert (client.late, client.missed, client.state) == (late, 0, HEALTHY)
    run.run_round(held=0b0111)
    assert (client.late, client.state, client.credits) == (3, DROPPED, 0)


def test_h2_a_good_round_forgives_lateness() -> None:
    run = build_training(rounds=1)
    run.run_round(held=0b0111)
    assert run.state.clients[3].late == 1
    run.run_round()
    assert run.state.clients[3].late == 0


def test_h2_lateness_sets_missed_to_zero() -> None:
    run = build_training(rounds=1)
    run.state.clients[3].missed = 1
    run.run_round(held=0b0111)
    assert (run.state.clients[3].missed, run.state.clients[3].late) == (0, 1)


def test_h2_the_limits_are_settings() -> None:
    run = build_training(rounds=1, evict_after=1, late_limit=1)
    run.run_round(silent={3}, held=0b1111)
    assert run.state.clients[3].state is DROPPED
    run.run_round(held=0b0011)
    assert run.state.clients[2].state is DROPPED


def test_a1_the_good_streak_counts_rounds_heard_and_starts_anew_after_absence() -> None:
    run = build_training(rounds=1)
    client = run.state.clients[3]
    assert client.good_streak == 9
    run.run_round(silent={3}, held=0b1111)
    assert client.good_streak == 0
    run.run_round(held=0b0111)
    assert client.good_streak == 1, "lateness does not end the streak, silence does"
    client.good_streak = 255
    run.run_round()
    assert client.good_streak == 255


# --- H3


def test_h3_if_more_than_half_would_go_none_goes_and_the_epoch_stops() -> None:
    run = build_training(5, rounds=1, witness_nodes=2)
    witnesses = get_witnesses(run.state.current)
    for client in run.state.clients:
        client.missed = 1
    heard = sum(1 << m for m in witnesses)
    run.run_round(heard=heard)
    assert run.state.run_state is RunState.COOLDOWN
    assert run.state.epoch.stop_reason is StopReason.MASS_DROP
    assert all(client.state is HEALTHY for client in run.state.clients)


def test_h3_exactly_half_may_go() -> None:
    run = build_training(4, rounds=1)
    for member in (2, 3):
        run.state.clients[member].missed = 1
    for member in range(3):
        run.send(run.build_witness(member, heard=0b0011))
    run.settle()
    assert [client.state for client in run.state.clients] == [HEALTHY, HEALTHY, DROPPED, DROPPED]
    assert run.state.run_state is RunState.ROUND_TRAIN


def test_h3_the_withdrawn_do_not_count() -> None:
    run = build_training(4, rounds=1)
    for member in (2, 3):
        run.state.clients[member].missed = 1
    for member in range(3):
        run.send(run.build_witness(member, heard=0b0011))
    for member in (1, 0):
        run.withdraw(member, epoch=0)
    run.settle()
    assert run.state.epoch.stop_reason is StopReason.MASS_DROP, "two of the two that are left"


# --- H4


def build_silent_witness(members: int = 4) -> Run:
    """A round closed by time-out in which member 3 was heard, but put nothing on record."""
    run = build_training(members, rounds=1)
    for member in range(3):  # their roots differ, so that only time closes the round
        run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    assert run.state.current.height == 2
    return run


def accuse(run: Run, member: int, *, height: int | None = None, epoch: int = 0, sender: bytes | None = None) -> None:
    state = run.state
    accusation = HealthCheck(epoch, state.current.height if height is None else height, member)
    run.apply(accusation, sender or state.clients[0].p2p)


def test_h4_a_silent_witness_is_counted_once_a_round_and_dropped_the_second_time() -> None:
    run = build_silent_witness()
    accuse(run, 3)
    client = run.state.clients[3]
    assert (client.witness_missed, client.witness_checked_height, client.state) == (1, 2, HEALTHY)
    with expect_refusal(run.state, InvalidHealthCheck, "already"):
        accuse(run, 3)
    for member in range(3):
        run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    accuse(run, 3)
    assert (client.witness_missed, client.state) == (2, DROPPED)
    assert run.state.registry.slots[3].strikes == 1, "H5: silence as a witness is an offence"
    with expect_refusal(run.state, InvalidHealthCheck, "Healthy"):
        accuse(run, 3)
    run.run_round()
    assert run.state.current.members == 0b0111


def play_h4(silences: int, order: tuple[int, ...]) -> list[tuple[object, ...]]:
    """Health after a round in which the four records and an accusation of member 3 come in this order.

    Member 3 was silent in `silences` rounds before it; 4 stands for the accusation.
    """
    run = build_silent_witness()
    for _ in range(silences - 1):
        accuse(run, 3)
        for member in range(3):
            run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
        run.wait(run.state.config.max_round_train_time)
        run.wait(run.state.config.round_witness_time)
    for what in order:
        if what == 4:
            accuse(run, 3)
        elif what < 3 or run.state.clients[3].state is HEALTHY:
            run.send(run.build_witness(what))
    run.settle()
    return [
        (c.state, c.missed, c.late, c.witness_missed, c.exited_height, s.strikes, s.until)
        for c, s in zip(run.state.clients, run.state.registry.slots, strict=True)
    ]


@pytest.mark.parametrize(("silences", "state", "missed"), [(1, HEALTHY, 0), (2, DROPPED, 2)])
def test_h4_every_order_of_accusations_and_records_gives_the_same_health(
    silences: int, state: ClientState, missed: int
) -> None:
    healths = {tuple(play_h4(silences, order)) for order in permutations(range(5))}
    assert len(healths) == 1
    accused = healths.pop()[3]
    assert (accused[0], accused[3]) == (state, missed)


def test_h4_two_accusations_with_a_record_between_drop_nobody_whenever_the_first_comes() -> None:
    for accused_first in (True, False):
        run = build_silent_witness()
        if accused_first:
            accuse(run, 3)
        for member in (3, 0, 1, 2):  # member 3 reports, but the round runs into its time-out
            run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
        if not accused_first:
            accuse(run, 3)
        run.settle()
        for member in range(3):
            run.send(run.build_witness(member, held=0b1111 & ~(1 << member)))
        run.wait(run.state.config.max_round_train_time)
        run.wait(run.state.config.round_witness_time)
        accuse(run, 3)
        client = run.state.clients[3]
        assert (client.witness_missed, client.state) == (1, HEALTHY), accused_first


def test_h4_anyone_with_a_slot_may_accuse_nobody_else() -> None:
    run = build_silent_witness()
    with expect_refusal(run.state, UnknownMember):
        accuse(run, 3, sender=build_keys(77)[0])
    run.join(77)
    accuse(run, 3, sender=build_keys(77)[0])


def test_b18_an_accusation_that_the_record_does_not_bear_out_has_no_effect() -> None:
    run = build_silent_witness()
    with expect_refusal(run.state, InvalidHealthCheck, "record"):
        accuse(run, 0)
    with expect_refusal(run.state, WrongRound, "T7"):
        accuse(run, 3, height=1)
    with expect_refusal(run.state, WrongRound, "T7"):
        accuse(run, 3, epoch=1)
    for nobody in (9, len(run.state.clients), -1):
        with expect_refusal(run.state, UnknownMember):
            accuse(run, nobody)
    run.run_round()
    with expect_refusal(run.state, InvalidHealthCheck, "time-out"):
        accuse(run, 3)


def test_h4_who_was_not_heard_has_crashed_and_is_h2s_business() -> None:
    run = build_training(rounds=1)
    for member in range(3):
        run.send(run.build_witness(member, held=0b1111 & ~(1 << member), heard=0b1111 if not member else 0b0111))
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    with expect_refusal(run.state, InvalidHealthCheck, "too few"):
        accuse(run, 3)


def test_h4_only_elected_witnesses_can_be_silent() -> None:
    run = build_training(5, rounds=1, witness_nodes=3)
    elected = get_witnesses(run.state.current)
    for member in elected[:2]:
        run.send(run.build_witness(member, held=0b11111 & ~(1 << member)))
    run.wait(run.state.config.max_round_train_time)
    run.wait(run.state.config.round_witness_time)
    stranger = next(m for m in range(5) if m not in elected)
    with expect_refusal(run.state, InvalidHealthCheck, "elected"):
        accuse(run, stranger)
    accuse(run, elected[2])


def test_h4_before_the_second_round_and_outside_rounds_there_is_nothing_to_check() -> None:
    run = build_training(rounds=0)
    with expect_refusal(run.state, NoActiveRound):
        accuse(run, 3)
    run.state.run_state = RunState.COOLDOWN
    with expect_refusal(run.state, InvalidRunState):
        accuse(run, 3)
    run.state.run_state = RunState.PAUSED
    with expect_refusal(run.state, Halted):
        accuse(run, 3)


# --- H5


def test_h5_dropped_for_absence_may_join_again_at_once() -> None:
    run = build_training(rounds=1)
    run.silent = {3}
    run.run_round()
    run.run_round()
    slot = run.state.registry.slots[3]
    assert (slot.strikes, slot.until) == (0, 0)
    run.join(3)
    assert slot.active == run.state.registry.next_active


def test_h5_dropped_for_lateness_waits_an_epoch() -> None:
    run = build_training(rounds=1, late_limit=1)
    run.run_round(held=0b0111)
    slot = run.state.registry.slots[3]
    assert (slot.strikes, slot.until) == (1, run.state.registry.next_active + 1)
    run.join(3)
    assert slot.active == slot.until


@pytest.mark.parametrize(("strikes", "wait"), [(1, 1), (2, 2), (3, 4), (4, 4), (255, 4)])
def test_h5_strikes_wait_one_two_then_four_epochs(strikes: int, wait: int) -> None:
    slot = Slot(strikes=strikes - 1)
    process_strike(slot, 10)
    assert (slot.strikes, slot.until) == (strikes, 10 + wait)
    process_strike(slot, 65_535)
    assert slot.until == 65_535
    assert slot.strikes <= 255


@pytest.mark.parametrize(
    ("client", "cleared"),
    [
        (Client(credits=3), True),
        (Client(credits=0), False),
        (Client(credits=3, late=1), False),
        (Client(credits=3, missed=1), False),
        (Client(credits=3, joined_height=4), False),
        (Client(credits=3, state=DROPPED), False),
    ],
)
def test_h5_a_whole_good_epoch_clears_the_strikes(client: Client, cleared: bool) -> None:
    slot = Slot(strikes=2, until=9)
    process_strike_clearing(slot, client)
    assert (slot.strikes, slot.until) == ((0, 0) if cleared else (2, 9))
