"""F2: whether a run bears the death of one client at each point of a round at which one of its tasks waits."""

from psyche.sim.crash_points import VICTIM, Point, find_points, play_killed
from psyche.sim.world import Outcome
from scenarios.row import Judgement, Size, compute_round_limit_s, get_durations, get_ledger, is_finished


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
