"""F2: whether a run bears the death of one client at each point of a round at which one of its tasks waits.

The points are found, not listed: in a run without faults, every place in the code where a task of the victim waits
within one round counts once, identified by the task's name and the innermost line of project code.
The same seed then repeats the run up to exactly that step, and the process dies there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

import psyche
from psyche.sim.hosts import ClientHost
from psyche.sim.runtime import Task, find_root
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import Outcome, World
from psyche.telemetry import types
from scenarios.base import Judgement, Size, compute_round_limit_s, get_durations, get_ledger, is_finished
from scenarios.ledger import play

VICTIM: Final = "client-1"
HEIGHT: Final = 2  # everything that a round may involve is under way: training, applying, fetching, attesting
PACKAGE: Final = f"{Path(psyche.__file__).parent}/"
STAND_INS: Final = (f"{PACKAGE}sim/", f"{PACKAGE}network/memory/")


@dataclass(frozen=True, slots=True)
class Point:
    """A step of the victim's tasks, counted from the beginning of the round, and where it left the task."""

    step: int
    task: str
    place: str


class Watch(trio.abc.Instrument):
    """Follows the victim's tasks through the round.

    Args:
        world: the world.
        kill_at: the step after which the process dies; None kills nothing and finds `points` instead.
    """

    def __init__(self, world: World, kill_at: int | None = None) -> None:
        self.points: dict[tuple[str, str], Point] = {}
        self._victim: ClientHost = next(host for host in world.clients if host.name == VICTIM)
        self._world = world
        self._kill_at = kill_at
        self._step = 0
        self._is_on = False
        world.trace.listeners.append(self._listen)

    def _listen(self, node: str, event: types.Event) -> None:
        if node != VICTIM or not isinstance(event, types.RoundStarted):
            return
        begins = (event.epoch, event.height) == (0, HEIGHT)
        if begins and not self._is_on:
            trio.lowlevel.add_instrument(self)
        elif self._is_on and not begins:
            trio.lowlevel.remove_instrument(self)
        self._is_on = begins

    def after_task_step(self, task: Task) -> None:
        life = self._victim.life
        if not self._is_on or life is None or life.root is None or find_root(task, {life.root: None}) is None:
            return
        self._step += 1
        if self._kill_at is None:
            self._note(task)
        elif self._step == self._kill_at:
            self._victim.kill()

    def _note(self, task: Task) -> None:
        place = ""
        for frame, line in task.iter_await_frames():
            name = frame.f_code.co_filename
            if name.startswith(PACKAGE) and not name.startswith(STAND_INS):
                place = f"psyche/{name.removeprefix(PACKAGE)}:{line}"
        if place:  # tasks of trio or of the simulation do not exist in a real process; ended tasks wait for nothing
            self.points.setdefault((task.name, place), Point(self._step, task.name, place))


def find_points(scenario: Scenario) -> list[Point]:
    watches: list[Watch] = []
    outcome = play(scenario, prepare=lambda world: watches.append(Watch(world)))
    assert not outcome.violations, outcome.describe()
    return sorted(watches[0].points.values(), key=lambda point: point.step)


def play_killed(scenario: Scenario, point: Point) -> Outcome:
    def prepare(world: World) -> None:
        Watch(world, point.step)

    return play(scenario, prepare=prepare)


def find_stall(outcome: Outcome) -> str:
    """What is wrong with a run whose victim was killed; empty where nothing is."""
    if outcome.violations:
        return str(outcome.violations[0])
    ledger = get_ledger(outcome)
    if not any(VICTIM in ledger.find_names(one.epoch, one.lost) for one in ledger.rounds.values()):
        return "it was not killed"
    if not is_finished(outcome):
        return "the run does not end"
    longest_s = get_durations(ledger.data_rounds)[-1]
    return f"a round lasts {longest_s:.1f} s" if longest_s > compute_round_limit_s(outcome.state.config) else ""


def choose_points(points: list[Point], count: int) -> list[Point]:
    """So many of them, evenly spread; 0: all."""
    if not 0 < count < len(points):
        return points
    return [points[number * len(points) // count] for number in range(count)]


def judge_crash_points(outcome: Outcome, size: Size) -> Judgement:
    """Kill the victim at each point of the quiet run."""
    scenario = outcome.scenario
    points = find_points(scenario)
    chosen = choose_points(points, size.points)
    wrong = [f"{p.task} at {p.place}: {problem}" for p in chosen if (problem := find_stall(play_killed(scenario, p)))]
    seen = f"killed at {len(chosen)} of {len(points)} points, {len(wrong)} wrong"
    return Judgement("; ".join([seen, *wrong[:3]]), bool(points) and not wrong)
