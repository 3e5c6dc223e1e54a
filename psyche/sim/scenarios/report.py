"""What a person needs of a simulation that failed: above all how to see it again."""

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from psyche.errors import ConfigError
from psyche.sim.scenarios.plan import read_scenario, write_scenario
from psyche.sim.scenarios.scenario import Scenario

TRACEBACK_LINES: Final = 16  # the last ones: where it was raised, and what


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


def describe_crash(scenario: Scenario, error: BaseException, last: Sequence[str]) -> str:
    """A simulation that an exception ended, with the last events before it."""
    cause = find_cause(error)
    head = f"{scenario.name} seed {scenario.seed}: the simulation itself ended with {cause!r}".lstrip()
    lines = "".join(traceback.format_exception(cause)).splitlines()
    return "\n".join([head, *describe_replay(scenario), *last, *lines[-TRACEBACK_LINES:]])


def find_cause(error: BaseException) -> BaseException:
    """The first exception within groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def get_report(error: BaseException, scenario: Scenario) -> str:
    """What `simulate` noted of an exception; of one that came before or after it, `scenario` says what was played."""
    notes: list[str] = getattr(error, "__notes__", [])
    return notes[-1] if notes else describe_crash(scenario, error, ())


def _is_whole(plan: str, scenario: Scenario) -> bool:
    try:
        return read_scenario(plan) == replace(scenario, config=dict(scenario.config))
    except ConfigError:
        return False
