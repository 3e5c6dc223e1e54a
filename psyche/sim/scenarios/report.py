"""The report of a failed simulation: above all, how to replay it."""

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from psyche.errors import ConfigError
from psyche.sim.scenarios.plan import read_scenario, write_scenario
from psyche.sim.scenarios.scenario import Scenario

TRACEBACK_LINES: Final = 16  # the last lines: where the exception was raised, and its message


def describe_replay(scenario: Scenario) -> list[str]:
    if scenario.origin:
        return [f"replay: {scenario.origin}"]
    plan = write_scenario(scenario)
    if not _is_whole(plan, scenario):
        return ["replay: a plan cannot express all of this scenario; only the code that built it can play it again"]
    return [
        "replay: save what follows as plan.toml, then python scripts/soak.py --plan plan.toml",
        "# plan.toml begins",
        *plan.splitlines(),
        "# plan.toml ends",
    ]


def describe_crash(scenario: Scenario, error: BaseException, last: Sequence[str]) -> str:
    cause = find_cause(error)
    head = f"{scenario.name} seed {scenario.seed}: the simulation itself failed: {cause!r}".lstrip()
    lines = "".join(traceback.format_exception(cause)).splitlines()
    return "\n".join([head, *describe_replay(scenario), *last, *lines[-TRACEBACK_LINES:]])


def find_cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def get_report(error: BaseException, scenario: Scenario) -> str:
    """The note that `simulate` added to an exception; if it has none, `scenario` says what was played."""
    notes: list[str] = getattr(error, "__notes__", [])
    return notes[-1] if notes else describe_crash(scenario, error, ())


def _is_whole(plan: str, scenario: Scenario) -> bool:
    try:
        return read_scenario(plan) == replace(scenario, config=dict(scenario.config))
    except ConfigError:
        return False
