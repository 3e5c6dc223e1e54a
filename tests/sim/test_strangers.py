"""Strangers that join every epoch and deliver nothing: what they cost a run whose members have had credits (M10)."""

import pytest

from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.world import Outcome, simulate

MEMBERS = 3
SIMULATED_S = 300.0


def play_with(strangers: int, kind: str = "") -> Outcome:
    """The run after so much simulated time; the strangers come while its first epoch runs."""
    classes = [MachineClass(count=MEMBERS)]
    if strangers:
        classes.append(MachineClass(count=strangers, join_s=15.0))
    outcome = simulate(
        Scenario(
            seed=1,
            classes=tuple(classes),
            byzantine=tuple(ByzantineMember(who=MEMBERS + number, kind=kind) for number in range(strangers)),
            config={"total_steps": 100_000, "rounds_per_epoch": 24, "init_min_clients": MEMBERS, "min_clients": 2},
            must_advance=False,
            limit_s=SIMULATED_S,
        )
    )
    assert not outcome.violations, outcome.describe()
    return outcome


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return play_with(0)


@pytest.mark.parametrize(("strangers", "kind"), [(1, "join_only"), (2, "idle"), (3, "withhold")])
def test_strangers_that_deliver_nothing_cost_a_run_less_than_a_fifth_of_its_steps(
    undisturbed: Outcome, strangers: int, kind: str
) -> None:
    outcome = play_with(strangers, kind)
    told = [outcome.facts["told"][f"client-{MEMBERS + number}"] for number in range(strangers)]
    assert all(told), "they took part"
    assert outcome.state.progress.step >= 0.8 * undisturbed.state.progress.step
    assert outcome.state.certified.epoch >= outcome.state.progress.epoch - 1, "no epoch is given up"
    slots = outcome.state.registry.slots
    assert [slot.proven for slot in slots] == [True] * MEMBERS + [False] * strangers
    assert min(slot.fruitless for slot in slots[MEMBERS:]) >= 2, "they wait ever longer"
