"""Plays scenarios and prints the digests of their event logs; run by tests in other interpreters."""

from dataclasses import replace

from sim_kit import build

from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.scenarios.scenario import CHAIN, MachineClass, Scenario
from psyche.sim.scenarios.swarm import draw_scenario
from psyche.sim.world import simulate


def build_scenario(seed: int) -> Scenario:
    newcomer = MachineClass(count=1, join_s=20.0, has_model=False)
    return Scenario(seed=seed, classes=(MachineClass(count=3), newcomer), config={"total_steps": 10})


def build_outvoted() -> Scenario:
    """More lie about their digest than the protocol bears: the honest one heals in vain, and writes its evidence."""
    liars = tuple(ByzantineMember(who=who, kind="lie_digest") for who in (1, 2, 3))
    scenario = build(5, clients=4, byzantine=liars, rounds_per_epoch=14, total_steps=20)
    return replace(scenario, must_advance=False, limit_s=300.0)


def build_repeated() -> dict[str, Scenario]:
    """What is played again and again: quiet runs, one with evidence, one with a liar and five faults."""
    chain = replace(build_scenario(5), backend=CHAIN)
    return {"quiet": build_scenario(5), "chain": chain, "outvoted": build_outvoted(), "drawn": draw_scenario(88)}


def play_digest(scenario: Scenario) -> str:
    outcome = simulate(scenario)
    assert not outcome.violations, outcome.describe()
    return outcome.digest


if __name__ == "__main__":
    for name, scenario in build_repeated().items():
        print(name, play_digest(scenario))
