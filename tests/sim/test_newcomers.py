"""Honest newcomers on probation: rounds wait for them within A3's bound, so they have credits and are proven (M10)."""

from pathlib import Path

import pytest
from scenarios.base import get_events, get_ledger
from sim_kit import play

from psyche.core.state.limits import STRAGGLER_PERCENT
from psyche.forecast.inputs import load_scenario
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.trainer import MachineModel
from psyche.sim.world import Outcome
from psyche.telemetry import types

MEMBERS = 3
NEWCOMER = f"client-{MEMBERS}"
SAMPLE_S = 2.0
CORPUS = Path(__file__).with_name("corpus")


def play_slow_newcomer(slower: float, **config: int) -> Outcome:
    """Members of one pace; a machine so many times slower comes while their first epoch runs. Epochs of 5 rounds."""
    settings = {"total_steps": 20, "rounds_per_epoch": 5, "init_min_clients": MEMBERS, "min_clients": 2}
    return play(
        Scenario(
            seed=1,
            classes=(
                MachineClass(count=MEMBERS, machine=MachineModel(sample_s=SAMPLE_S, spread=0.02)),
                MachineClass(join_s=15.0, machine=MachineModel(sample_s=SAMPLE_S * slower, spread=0.02)),
            ),
            config=settings | config,
        )
    )


def get_dropped_in_rounds(outcome: Outcome) -> list[str]:
    """Who was dropped in an epoch of which it had begun a round: of those a Warmup drops, none has."""
    ledger = get_ledger(outcome)
    found = []
    for event in get_events(outcome, types.Dropped):
        epoch = [one.epoch for one in ledger.formations if one.at_s <= event.t][-1]
        rounds = (one for one in ledger.rounds.values() if one.epoch == epoch)
        if any(event.node in ledger.find_names(epoch, one.members) for one in rounds):
            found.append(event.node)
    return found


@pytest.mark.whole
def test_a_newcomer_that_is_slower_than_all_electors_is_proven_in_its_first_epoch() -> None:
    slower = 1.4
    assert 100 * slower < STRAGGLER_PERCENT, "within what every member is granted (A3)"
    outcome = play_slow_newcomer(slower)
    ledger = get_ledger(outcome)
    first, *later = [one.epoch for one in ledger.formations if NEWCOMER in one.names]
    paid = {one.epoch: one.credits.get(NEWCOMER, 0) for one in ledger.epochs}
    assert len(later) >= 1, "it comes again"
    assert all(paid[epoch] > 0 for epoch in (first, *later)), paid
    assert paid[first] == 5, "a credit for each round with data"
    assert get_dropped_in_rounds(outcome) == []
    assert outcome.state.registry.slots[MEMBERS].proven
    assert outcome.state.registry.slots[MEMBERS].fruitless == 0


def test_newcomers_that_one_elector_could_not_hear_so_soon_are_not_dropped() -> None:
    """A plan that chance found: an elector left alone closed rounds in a third of a second."""
    outcome = play(load_scenario(CORPUS / "newcomers-dropped-together.toml"))
    assert get_dropped_in_rounds(outcome) == []
    assert not any(slot.fruitless for slot in outcome.state.registry.slots if slot.proven)
