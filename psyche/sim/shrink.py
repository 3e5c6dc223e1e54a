"""Shrinks a failing scenario: removes everything that the failure does not need."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

from psyche.network.memory.line import LinkConditions
from psyche.sim.scenarios.report import find_cause
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.trainer import MachineModel
from psyche.sim.world import Outcome, simulate

T = TypeVar("T")
IsFailing = Callable[[Scenario], bool]


def fails_alike(failure: Outcome | Exception) -> IsFailing:
    name = _get_names(failure)[0]
    return lambda scenario: name in _get_names(_play(scenario))


def _play(scenario: Scenario) -> Outcome | Exception:
    try:
        return simulate(scenario, keep_lines=False)
    except Exception as error:  # noqa: BLE001 - any exception of a simulation is a failure
        return error


def _get_names(played: Outcome | Exception) -> list[str]:
    if isinstance(played, Outcome):
        return [violation.name for violation in played.violations]
    return [f"exception {type(find_cause(played)).__name__}"]


def shrink(scenario: Scenario, is_failing: IsFailing, *, max_tries: int = 200) -> Scenario:
    """The smallest failing scenario found: removes faults one by one, then liars, line conditions, machines, steps."""
    tries = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _iter_smaller(scenario):
            tries += 1
            if tries > max_tries:
                return scenario
            if is_failing(smaller):
                scenario, shrunk = smaller, True
                break
    return scenario


def _iter_smaller(scenario: Scenario) -> Iterator[Scenario]:
    for index in range(len(scenario.faults)):
        yield dataclasses.replace(scenario, faults=_without(scenario.faults, index))
    for index in range(len(scenario.byzantine)):
        yield dataclasses.replace(scenario, byzantine=_without(scenario.byzantine, index))
    yield from _iter_calmer(scenario)
    yield from _iter_fewer(scenario)
    steps = scenario.config.get("total_steps", 0)
    if steps > 3:
        yield dataclasses.replace(scenario, config=dict(scenario.config) | {"total_steps": steps * 2 // 3})


def _iter_calmer(scenario: Scenario) -> Iterator[Scenario]:
    for index, one in enumerate(scenario.classes):
        calm = LinkConditions()
        for changes in ({"uplink": calm}, {"downlink": calm}, {"machine": MachineModel()}, {"join_spread_s": 1.0}):
            calmer = dataclasses.replace(one, **changes)
            if calmer != one:
                yield _replace_class(scenario, index, calmer)


def _iter_fewer(scenario: Scenario) -> Iterator[Scenario]:
    last = max((liar.who for liar in scenario.byzantine), default=-1)
    needed = max(scenario.config.get("init_min_clients", 2), last + 1)
    for index, one in enumerate(scenario.classes):
        if one.count > 1 and scenario.clients > needed:
            yield _replace_class(scenario, index, dataclasses.replace(one, count=one.count - 1))


def _replace_class(scenario: Scenario, index: int, changed: object) -> Scenario:
    classes = (*scenario.classes[:index], changed, *scenario.classes[index + 1 :])
    return dataclasses.replace(scenario, classes=classes)


def _without(items: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*items[:index], *items[index + 1 :])
