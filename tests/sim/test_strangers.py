"""Strangers that join every epoch and deliver nothing: what they cost a run whose members have had credits (M10)."""

from functools import cache

import pytest
from kits.tier import few
from scenarios.base import get_events

from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.trainer import MachineModel
from psyche.sim.world import Outcome, simulate
from psyche.telemetry import types

MEMBERS = 3
JOIN_S = 15.0  # while the first epoch runs, or the second
SHORT_S = 0.1  # training of one sample: rounds of a third of a second
LONG_S = 3.5  # rounds of ten seconds
BATCH = 8  # samples of a round, of all members together
BUSY = {"warmup_time": 10, "cooldown_time": 1, "waiting_for_members_extra_time": 1, "max_round_train_time": 60}


def play_with(strangers: int, kind: str, sample_s: float, limit_s: float, **config: int) -> Outcome:
    """The run after so much simulated time; the strangers come when its members have had credits."""
    machine = MachineModel(sample_s=sample_s)
    classes = [MachineClass(count=MEMBERS, machine=machine)]
    if strangers:
        classes.append(MachineClass(count=strangers, machine=machine, join_s=JOIN_S))
    settings = {"total_steps": 100_000, "init_min_clients": MEMBERS, "min_clients": 2, "global_batch_size_start": BATCH}
    outcome = simulate(Scenario(
        seed=1, classes=tuple(classes),
        byzantine=tuple(ByzantineMember(who=MEMBERS + number, kind=kind) for number in range(strangers)),
        config=settings | config, must_advance=False, limit_s=limit_s,
    ))  # fmt: skip
    assert not outcome.violations, outcome.describe()
    return outcome


@cache
def play_undisturbed(sample_s: float, limit_s: float, config: tuple[tuple[str, int], ...]) -> Outcome:
    return play_with(0, "", sample_s, limit_s, **dict(config))


def count_steps(outcome: Outcome) -> int:
    changes = get_events(outcome, types.StateChanged, "server")
    before = max((seen.event.step for seen in changes if seen.t < JOIN_S), default=0)
    return outcome.state.progress.step - before


def measure_share(outcome: Outcome) -> float:
    """Which share of its steps the run has made, of those that it makes without strangers."""
    scenario = outcome.scenario
    config = tuple(sorted(scenario.config.items()))
    undisturbed = play_undisturbed(scenario.classes[0].machine.sample_s, scenario.limit_s, config)
    return count_steps(outcome) / count_steps(undisturbed)


@pytest.mark.whole
@pytest.mark.parametrize(("strangers", "kind"), few([(1, "join_only"), (2, "idle"), (3, "withhold")]))
def test_strangers_that_deliver_nothing_cost_a_run_less_than_a_fifth_of_its_steps(strangers: int, kind: str) -> None:
    outcome = play_with(strangers, kind, 0.5, 300.0, rounds_per_epoch=24)
    told = [outcome.facts["told"][f"client-{MEMBERS + number}"] for number in range(strangers)]
    assert all(told), "they took part"
    assert measure_share(outcome) >= 0.8
    assert outcome.state.certified.epoch >= outcome.state.progress.epoch - 1, "no epoch is given up"
    slots = outcome.state.registry.slots
    assert [slot.proven for slot in slots] == [True] * MEMBERS + [False] * strangers
    assert min(slot.fruitless for slot in slots[MEMBERS:]) >= 2, "they wait ever longer"


def play_busy(strangers: int, kind: str, sample_s: float, window_s: float, rounds: int) -> Outcome:
    """Epochs follow one another at once, and the strangers' waits have just begun."""
    outcome = play_with(strangers, kind, sample_s, JOIN_S + window_s, rounds_per_epoch=rounds, **BUSY)
    slots = outcome.state.registry.slots[MEMBERS:]
    assert all(slot.fruitless and not slot.proven for slot in slots), "they took part, and it came to nothing"
    return outcome


@pytest.mark.whole
@pytest.mark.parametrize("rounds", few([5, 20]))
@pytest.mark.parametrize(("sample_s", "window_s"), few([(SHORT_S, 60.0), (LONG_S, 600.0)]))
def test_two_strangers_that_say_they_are_ready_and_do_nothing_cost_a_busy_run_less_than_a_fifth(
    sample_s: float, window_s: float, rounds: int
) -> None:
    assert measure_share(play_busy(2, "idle", sample_s, window_s, rounds)) >= 0.8


@pytest.mark.whole
@pytest.mark.parametrize("rounds", few([5, 20]))
@pytest.mark.parametrize(("strangers", "kind"), few([(9, "idle"), (2, "withhold")]))
def test_strangers_that_are_others_in_every_epoch_or_give_nobody_their_results_cost_a_busy_run_a_quarter_at_most(
    strangers: int, kind: str, rounds: int
) -> None:
    """An epoch takes three newcomers at most, and those first that have waited least: of nine, others each time."""
    assert measure_share(play_busy(strangers, kind, SHORT_S, 60.0, rounds)) >= 0.75
