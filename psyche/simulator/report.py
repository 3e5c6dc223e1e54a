"""What a person needs of a simulation that failed: above all how to see it again."""

from dataclasses import replace

from psyche.errors import ConfigError
from psyche.simulator.plan import read_scenario, write_scenario
from psyche.simulator.scenario import Scenario


def describe_replay(scenario: Scenario) -> list[str]:
    """How to play a scenario again: its command, or its plan with what to do with it."""
    if scenario.origin:
        return [f"replay: {scenario.origin}"]
    plan = write_scenario(scenario)
    if not _is_whole(plan, scenario):
        return ["replay: no plan says all of this scenario; it can only be played by the code that made it"]
    return [
        "replay: save what follows as plan.toml, then python scripts/soak.py --plan plan.toml",
        "# plan.toml begins",
        *plan.splitlines(),
        "# plan.toml ends",
    ]


def _is_whole(plan: str, scenario: Scenario) -> bool:
    try:
        return read_scenario(plan) == replace(scenario, config=dict(scenario.config))
    except ConfigError:
        return False
