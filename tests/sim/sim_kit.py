"""What the simulator's tests share: small scenarios."""

from typing import Any

from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import Fault
from psyche.sim.scenarios.scenario import MachineClass, Scenario
from psyche.sim.world import Outcome


def build(
    seed: int = 1, *, clients: int = 4, faults: tuple[Fault, ...] = (), byzantine: tuple[ByzantineMember, ...] = (),
    cls: dict[str, Any] | None = None, **config: int,
) -> Scenario:  # fmt: skip
    """A run of one class of clients: an epoch of eight rounds unless said otherwise."""
    values = {"total_steps": 9, "init_min_clients": clients, "min_clients": 2} | config
    machines = MachineClass(count=clients, **(cls or {}))
    return Scenario(seed=seed, classes=(machines,), config=values, faults=faults, byzantine=byzantine)


def play(scenario: Scenario) -> Outcome:
    from scenarios import ledger  # not where a child builds scenarios: it has this folder on its path alone

    outcome = ledger.play(scenario)
    assert not outcome.violations, outcome.describe()
    return outcome
