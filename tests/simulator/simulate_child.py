"""Plays the scenario of a seed and prints the digest of its event log; run by tests in other interpreters."""

import sys

from psyche.simulator.scenario import MachineClass, Scenario
from psyche.simulator.world import simulate


def build_scenario(seed: int) -> Scenario:
    """Three members and a latecomer without the model."""
    newcomer = MachineClass(count=1, join_s=20.0, has_model=False)
    return Scenario(seed=seed, classes=(MachineClass(count=3), newcomer), config={"total_steps": 10})


if __name__ == "__main__":
    outcome = simulate(build_scenario(int(sys.argv[1])))
    assert not outcome.violations, outcome.describe()
    print(outcome.digest)
