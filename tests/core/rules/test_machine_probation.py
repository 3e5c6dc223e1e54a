"""M10: newcomers take part on probation until their first credit, and wait where they came to nothing."""

import pytest
from kits.runs import Run, build_run

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import compute_quorum, get_witnesses
from psyche.core.rules.health import process_settlement, process_strike
from psyche.core.rules.probation import process_fruitless_epoch
from psyche.core.state.limits import MAX_WITNESSES
from psyche.core.state.roster import get_electors, get_healthy
from psyche.core.state.state import ZERO32, Client, ClientFlag, ClientState, RunState, Slot, SlotState, StopReason

PROBATION = ClientFlag.PROBATION
HEALTHY, DROPPED = ClientState.HEALTHY, ClientState.DROPPED


def build_proven(proven: int = 3, **config: object) -> Run:
    """So many members have had credits in a first epoch, and have joined again."""
    settings = {"rounds_per_epoch": 2, "init_min_clients": proven, "min_clients": 1, **config}
    run = build_run(proven, **settings).warm_up().finish_epoch()
    run.rejoin()
    return run


def build_mixed(proven: int = 3, newcomers: int = 2, **config: object) -> Run:
    """Round 0 of a second epoch; the newcomers have the last slots. All are ready."""
    run = build_proven(proven, **config)
    run.join(*range(proven, proven + newcomers))
    return run.warm_up()


def get_slots(run: Run) -> list[int]:
    return [client.slot for client in run.state.clients]


# --- who is on probation


def test_m10_where_nobody_is_proven_nobody_is_on_probation() -> None:
    run = build_run(4, rounds_per_epoch=2).warm_up()
    assert run.state.current.electors == run.state.current.members == 0b1111
    assert not any(client.flags & PROBATION for client in run.state.clients)
    assert not any(slot.proven for slot in run.state.registry.slots)


def test_m10_a_credit_proves_a_slot_for_good() -> None:
    run = build_run(4, rounds_per_epoch=3).warm_up()
    run.run_round()
    run.run_round(held=0b0111)
    assert [slot.proven for slot in run.state.registry.slots] == [True, True, True, False]
    run.finish_epoch()
    assert [slot.proven for slot in run.state.registry.slots] == [True] * 4


def test_m10_newcomers_train_and_do_not_witness() -> None:
    run = build_mixed(3, 2)
    round_ = run.state.current
    assert (round_.members, round_.electors) == (0b11111, 0b00111)
    assert (round_.witnesses_expected, round_.quorum) == (3, compute_quorum(3))
    assert sorted(get_witnesses(round_)) == [0, 1, 2]
    assert sorted(compute_assignments(round_, run.state.config)) == [0, 1, 2, 3, 4]
    assert [client.good_streak for client in run.state.clients] == [8] * 5, "A1"
    assert [bool(client.flags & PROBATION) for client in run.state.clients] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(("failed", "electors"), [(0, 0b0011), (1, 0b1111), (2, 0b0011), (3, 0b1111)])
def test_m10_everybody_elects_in_every_other_epoch_after_one_that_certified_nothing(failed: int, electors: int) -> None:
    """Two proven members of whom one lies agree on nothing: without the others no epoch would ever be certified."""
    run = build_proven(2)
    run.join(2, 3)
    run.state.progress.epoch += failed
    run.warm_up()
    assert run.state.current.electors == electors
    assert run.state.current.witnesses_expected == electors.bit_count()


def test_m10_the_first_credit_ends_probation() -> None:
    run = build_mixed(3, 2, rounds_per_epoch=4)
    run.run_round()
    run.run_round(held=0b01111)
    assert [bool(client.flags & PROBATION) for client in run.state.clients] == [False] * 4 + [True]
    assert run.state.current.electors == 0b00111, "E1: the seed of this round was armed before the credit"
    assert run.state.clients[3].good_streak == 8, "A1: rounds go on waiting for it"
    run.run_round(held=0b01111)
    assert run.state.current.electors == 0b01111
    assert run.state.current.witnesses_expected == 4
    run.finish_epoch()
    assert not run.state.registry.slots[3].fruitless


def test_m10_where_only_newcomers_are_left_they_elect() -> None:
    run = build_mixed(2, 2, rounds_per_epoch=9)
    run.run_round()
    for member in (0, 1):
        run.withdraw(member, epoch=1)
    assert get_electors(run.state, get_healthy(run.state)) == 0b1100
    run.run_round()
    assert run.state.current.electors == 0b1100


def test_m10_strangers_that_say_they_are_ready_and_do_nothing_hold_no_round_up() -> None:
    run = build_mixed(3, 3, rounds_per_epoch=4)
    run.silent = {3, 4, 5}
    began = run.now
    for _ in run.run_rounds():
        pass
    assert run.now - began == 6, "each round closes when its witnesses have reported, after a second"
    assert run.state.certified.epoch == 1
    assert [client.state for client in run.state.clients] == [HEALTHY] * 3 + [DROPPED] * 3


def test_h3_counts_electors_so_newcomers_that_go_end_no_epoch() -> None:
    run = build_mixed(4, 4, rounds_per_epoch=9, evict_after=1)
    run.run_round(silent={3, 4, 5, 6, 7}, held=0)
    assert run.state.run_state is RunState.ROUND_TRAIN, "five of eight go, but only one of four electors"
    assert get_healthy(run.state) == 0b0111


def test_h3_more_than_half_of_the_electors_stop_the_epoch() -> None:
    run = build_mixed(3, 3, rounds_per_epoch=9, evict_after=1)
    for member in (0, 1):
        run.send(run.build_witness(member, heard=0b000011))
    run.settle()
    assert get_healthy(run.state) == 0b000011, "four of six go, but only one of three electors"
    run = build_mixed(4, 3, rounds_per_epoch=9, evict_after=1)
    for member in range(3):
        run.send(run.build_witness(member, heard=0b1110001))
    run.settle()
    assert run.state.epoch.stop_reason is StopReason.MASS_DROP, "three of four, though three of seven"


def test_h1_who_is_on_probation_is_late_like_everybody_else() -> None:
    """Rounds wait for it from the start (A1)."""
    run = build_mixed(3, 1, rounds_per_epoch=9)
    for late in range(4):
        assert (run.state.clients[3].late, run.state.clients[3].state) == (max(0, late - 1), HEALTHY)
        run.run_round(held=0b0111 if late else 0)
    assert run.state.clients[3].state is DROPPED, "late in three rounds; the first one has nothing to attest"
    assert run.state.registry.slots[3].strikes == 1, "H5"


def test_a1_a_credit_makes_a_newcomer_one_that_is_waited_for_whatever_it_missed_before() -> None:
    """On probation it is awaited after an absence too; that must not end with its first credit."""
    run = build_mixed(3, 1, rounds_per_epoch=9)
    run.run_round()
    run.run_round(silent={3}, held=0b0111)
    assert (run.state.clients[3].missed, run.state.clients[3].good_streak) == (1, 0)
    run.run_round(held=0b1111)
    client = run.state.clients[3]
    assert (client.flags & PROBATION, client.missed, client.good_streak) == (ClientFlag(0), 0, 8)


def test_h1_an_absence_takes_an_honest_witness_that_waited() -> None:
    """Of q that did not hear a member, one is honest and among the q that said complete, while only f lie."""
    for n in range(1, MAX_WITNESSES + 1):
        q, liars = compute_quorum(n), (n - 1) // 3
        honest_and_complete = q - liars
        assert n - honest_and_complete < q


# --- what it costs to come to nothing


def test_m10_a_member_without_a_credit_where_others_have_some_waits() -> None:
    run = build_mixed(3, 2, rounds_per_epoch=3)
    run.silent = {4}
    run.finish_epoch()
    quiet, worked = run.state.registry.slots[4], run.state.registry.slots[3]
    assert (quiet.proven, quiet.fruitless, quiet.until) == (False, 1, run.state.registry.next_active + 1)
    assert (worked.proven, worked.fruitless, worked.until) == (True, 0, 0)
    run.silent = set()
    run.join(0, 1, 2, 3, 4)
    run.form()
    assert get_slots(run) == [0, 1, 2, 3]


def test_m10_one_credit_of_somebody_else_is_enough_to_make_a_newcomer_wait() -> None:
    run = build_mixed(1, 1, rounds_per_epoch=9)
    run.state.epoch.credit_total = run.state.clients[0].credits = 1
    process_settlement(run.state)
    assert run.state.registry.slots[1].fruitless == 1


def test_m10_who_is_not_ready_when_the_round_starts_waits_too() -> None:
    run = build_proven(3)
    run.join(3)
    run.silent = {3}
    run.warm_up()
    assert run.state.clients[3].state is DROPPED
    run.silent = set()
    run.finish_epoch()
    assert run.state.registry.slots[3].fruitless == 1


@pytest.mark.parametrize("when", ["in Warmup", "in a round"])
@pytest.mark.parametrize("how", ["withdraw", "leave"])
def test_m10_withdrawing_early_does_not_avoid_the_wait(when: str, how: str) -> None:
    run = build_proven(3)
    run.join(3)
    if when == "in a round":
        run.warm_up()
    else:
        run.form()
    if how == "leave":
        run.leave(3)
    else:
        run.withdraw(3, epoch=1)
    if when == "in Warmup":
        run.warm_up()
    run.silent = {3}
    run.finish_epoch()
    slot = run.state.registry.slots[3]
    assert slot.state is (SlotState.LEFT if how == "leave" else SlotState.JOINED)
    assert run.join(3) == [3]
    slot = run.state.registry.slots[3]
    assert (slot.fruitless, slot.until, slot.active) == (1, run.state.registry.next_active + 1, slot.until)


def test_m10_an_epoch_that_gives_nobody_a_credit_makes_nobody_wait_who_was_ready() -> None:
    run = build_mixed(3, 1, rounds_per_epoch=9)
    run.run_round()
    for _ in range(2):
        for member in run.get_speaking_witnesses():
            run.send(run.build_witness(member, held=1 << member, state_digest=bytes([member + 1]) * 32))
        run.settle()
        run.wait(30)
    run.finish_epoch()
    assert run.state.epoch.credit_total == 0
    assert run.state.registry.slots[3].fruitless == 0


def test_m10_a_warmup_that_is_given_up_makes_nobody_wait() -> None:
    run = build_proven(3, min_clients=3)
    run.join(3)
    run.form()
    run.show(0, 1)
    run.wait(run.state.config.warmup_time)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    assert [slot.fruitless for slot in run.state.registry.slots] == [0] * 4


def test_m10_a_proven_slot_that_comes_to_nothing_does_not_wait() -> None:
    run = build_mixed(3, 1, rounds_per_epoch=3)
    run.silent = {0}
    run.finish_epoch()
    assert run.state.clients[0].credits == 0
    assert (run.state.registry.slots[0].fruitless, run.state.registry.slots[0].until) == (0, 0)


@pytest.mark.parametrize(
    ("times", "wait"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 64), (8, 64), (255, 64), (256, 64)]
)
def test_m10_each_wait_is_twice_as_long_up_to_64_epochs(times: int, wait: int) -> None:
    slot = Slot(fruitless=times - 1)
    process_fruitless_epoch(slot, Client(flags=ClientFlag.READY), 10, is_credited=True)
    assert (slot.fruitless, slot.until) == (min(times, 255), 10 + wait)
    process_fruitless_epoch(slot, Client(), 65_500, is_credited=False)
    assert slot.until == 65_500 + min(2 * wait, 64) if times < 4 else slot.until <= 65_535


def test_m10_no_wait_shortens_another() -> None:
    slot = Slot(fruitless=4)
    process_fruitless_epoch(slot, Client(), 10, is_credited=True)
    assert slot.until == 26
    process_strike(slot, 10)
    assert (slot.strikes, slot.until) == (1, 26)


def test_m10_a_credit_clears_the_waits_of_probation_and_leaves_those_of_strikes() -> None:
    run = build_mixed(2, 2, rounds_per_epoch=3)
    for number in (2, 3):
        slot = run.state.registry.slots[number]
        slot.fruitless, slot.until, slot.strikes = 3, 40, int(number == 3)
    run.run_round()
    run.run_round()
    assert [(s.fruitless, s.until, s.proven) for s in run.state.registry.slots[2:]] == [(0, 0, True), (0, 40, True)]


def test_h5_a_slot_that_was_left_keeps_its_probation() -> None:
    run = build_mixed(3, 1)
    run.silent = {3}
    run.finish_epoch()
    until = run.state.registry.slots[3].until
    run.leave(3)
    slot = run.state.registry.slots[3]
    assert (slot.state, slot.p2p, slot.fruitless, slot.until) == (SlotState.LEFT, ZERO32, 1, until)


def test_m4_leave_frees_at_once_the_slot_of_a_join_that_took_part_in_nothing() -> None:
    run = build_proven(3)
    run.join(3)
    run.leave(3)
    assert run.state.registry.slots[3] == Slot()


# --- M3: whom a formation takes


def test_m10_newcomers_are_at_most_as_many_as_proven_ones() -> None:
    run = build_proven(2)
    run.join(*range(2, 9))
    run.form()
    assert get_slots(run) == [0, 1, 2, 3]


def test_m10_newcomers_that_came_to_nothing_stand_behind_those_that_did_not_try() -> None:
    run = build_proven(2)
    run.join(*range(2, 6))
    for number, fruitless in ((2, 2), (3, 1), (4, 1), (5, 0)):
        run.state.registry.slots[number].fruitless = fruitless
    run.form()
    assert get_slots(run) == [0, 1, 3, 5]


def test_m10_there_are_always_newcomers_enough_for_init_min_clients() -> None:
    run = build_proven(1)
    run.state.config.init_min_clients = 4
    run.join(*range(1, 6))
    run.form()
    assert get_slots(run) == [0, 1, 2, 3]


def wait_longer(run: Run, *numbers: int, epochs: int = 3) -> None:
    for number in numbers:
        slot = run.state.registry.slots[number]
        slot.active = slot.until = run.state.registry.next_active + epochs


def test_m3_proven_slots_that_wait_fill_up_before_others_that_wait() -> None:
    run = build_proven(3, init_min_clients=3)
    run.join(3, 4)
    wait_longer(run, 1, epochs=9)
    wait_longer(run, 2, epochs=5)
    wait_longer(run, 3, epochs=1)
    run.form()
    assert get_slots(run) == [0, 2, 4], "no more than it takes, and the one first that waits least"


def test_m3_newcomers_that_wait_fill_up_last() -> None:
    run = build_proven(2, init_min_clients=2)
    run.state.config.init_min_clients = 4
    run.join(2, 3, 4)
    wait_longer(run, 2, epochs=2)
    wait_longer(run, 3, epochs=1)
    wait_longer(run, 4, epochs=3)
    run.form()
    assert get_slots(run) == [0, 1, 2, 3]


def test_m3_those_that_wait_stay_out_where_more_than_enough_have_joined() -> None:
    run = build_proven(3, init_min_clients=1)
    run.join(3, 4)
    wait_longer(run, 3, 4)
    run.form()
    assert get_slots(run) == [0, 1, 2]


def test_m3_proven_slots_that_wait_are_taken_rather_than_strangers_alone() -> None:
    run = build_proven(2)
    run.join(2, 3, 4, 5)
    wait_longer(run, 0, 1)
    run.form()
    assert get_slots(run) == [0, 1, 2, 3]
    assert [bool(client.flags & PROBATION) for client in run.state.clients] == [False, False, True, True]


# --- T8 with newcomers


def warm_up_newcomers(shown: tuple[int, ...]) -> Run:
    run = build_proven(3, warmup_time=60)
    run.join(3, 4, 5)
    run.form()
    run.show(*shown)
    return run


def test_t8_newcomers_have_half_of_warmup_time_and_hold_nobody_up_after_it() -> None:
    run = warm_up_newcomers((0, 1, 2))
    assert run.wait(29) == 0, "they may still have to fetch the weights"
    assert run.wait(1) == 2, "three of three electors are enough, three of six members would not be"
    assert run.state.current.members == 0b000111


def test_t8_newcomers_that_are_ready_start_at_once_with_the_others() -> None:
    run = warm_up_newcomers((0, 1, 2, 3, 4))
    assert run.wait(20) == 0
    run.show(5)
    assert run.settle() == 2
    assert run.state.current.members == 0b111111


@pytest.mark.parametrize(("shown", "starts"), [((3, 4, 5), False), ((0, 3, 4, 5), True)])
def test_t8_newcomers_alone_start_no_epoch(shown: tuple[int, ...], starts: bool) -> None:
    run = warm_up_newcomers(shown)
    assert run.wait(59) == 0
    run.wait(1)
    assert run.state.in_round == starts
    if not starts:
        assert run.state.run_state is RunState.WAITING_FOR_MEMBERS


def test_t8_a_quorum_of_electors_without_min_clients_is_not_enough() -> None:
    run = build_proven(3, warmup_time=60)
    run.state.config.min_clients = run.state.config.init_min_clients = 4
    run.join(3, 4, 5)
    run.form()
    run.show(0, 1, 2)
    assert run.state.epoch.ready_quorum_unix == 0
    run.show(3)
    assert run.state.epoch.ready_quorum_unix == run.now
