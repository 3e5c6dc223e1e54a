"""M10: newcomers take part on probation until their first credit, and wait where they came to nothing."""

import pytest
from kits.runs import Run, build_run

from psyche.core.committee.assignment import compute_assignments
from psyche.core.committee.elections import compute_quorum, get_witnesses
from psyche.core.rules.probation import process_fruitless_epoch
from psyche.core.state.roster import get_healthy
from psyche.core.state.state import Client, ClientFlag, ClientState, RunState, Slot

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


def test_h3_counts_electors_so_newcomers_that_go_end_no_epoch() -> None:
    run = build_mixed(4, 4, rounds_per_epoch=9, evict_after=1)
    run.run_round(silent={3, 4, 5, 6, 7}, held=0)
    assert run.state.run_state is RunState.ROUND_TRAIN, "five of eight go, but only one of four electors"
    assert get_healthy(run.state) == 0b0111


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


@pytest.mark.parametrize(
    ("times", "wait"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 32), (7, 64), (8, 64), (255, 64), (256, 64)]
)
def test_m10_each_wait_is_twice_as_long_up_to_64_epochs(times: int, wait: int) -> None:
    slot = Slot(fruitless=times - 1)
    process_fruitless_epoch(slot, Client(flags=ClientFlag.READY), 10, is_credited=True)
    assert (slot.fruitless, slot.until) == (min(times, 255), 10 + wait)
    process_fruitless_epoch(slot, Client(), 65_500, is_credited=False)
    assert slot.until == 65_500 + min(2 * wait, 64) if times < 4 else slot.until <= 65_535


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


# --- T8 with newcomers


def warm_up_newcomers(shown: tuple[int, ...]) -> Run:
    run = build_proven(3, warmup_time=60)
    run.join(3, 4, 5)
    run.form()
    run.show(*shown)
    return run


@pytest.mark.parametrize(("shown", "starts"), [((3, 4, 5), False), ((0, 3, 4, 5), True)])
def test_t8_newcomers_alone_start_no_epoch(shown: tuple[int, ...], starts: bool) -> None:
    run = warm_up_newcomers(shown)
    assert run.wait(59) == 0
    run.wait(1)
    assert run.state.in_round == starts
    if not starts:
        assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
