"""What a named scenario is, and questions that judges ask of an outcome."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from psyche.core.state.state import Config, RunState
from psyche.server.connections.limits import TICK_S
from psyche.sim.scenarios.scenario import Scenario
from psyche.sim.world import Outcome
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from scenarios.ledger import Ledger, RoundFacts

GRAIN_S: Final = 1.0  # the record's times are whole seconds (T1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    seed: int = 1  # of all chance
    clients: int = 16  # how many
    rounds: int = 100
    hours: float = 0.0  # of simulated time, for scenarios that are about time
    points: int = 0  # of what a scenario enumerates, so many spread evenly; 0: all


@dataclass(frozen=True, slots=True)
class Judgement:
    seen: str
    holds: bool


Judge = Callable[[Outcome, Size], Judgement]


@dataclass(frozen=True, slots=True)
class Named:
    """One scenario.

    `expected` says in words what `judge` checks beside the invariants, which hold in every scenario. `full` is the
    size at which it says most, where that is not the usual one. `keep_lines`: whether its judge reads events.
    """

    name: str
    title: str
    expected: str
    build: Callable[[Size], Scenario]
    judge: Judge
    full: Size = Size()
    keep_lines: bool = True


def judge_all(*judges: Judge) -> Judge:
    def judge(outcome: Outcome, size: Size) -> Judgement:
        found = [one(outcome, size) for one in judges]
        return Judgement("; ".join(one.seen for one in found if one.seen), all(one.holds for one in found))

    return judge


def get_events(outcome: Outcome, event_type: type[types.Event], node: str = "") -> list[Entry]:
    return [one for one in outcome.entries if isinstance(one.event, event_type) and node in ("", one.node)]


def get_ledger(outcome: Outcome) -> Ledger:
    found = outcome.facts["ledger"]
    assert isinstance(found, Ledger), "every outcome has one"
    return found


def is_finished(outcome: Outcome) -> bool:
    return outcome.state.run_state is RunState.FINISHED and not outcome.violations


def get_byzantine(outcome: Outcome) -> set[str]:
    return {f"client-{liar.who}" for liar in outcome.scenario.byzantine}


def compute_applied_share(outcome: Outcome) -> float:
    """Of the batches of members that were alive through their round, how many are applied."""
    alive = applied = 0
    for one in get_ledger(outcome).data_rounds:
        members = one.members & ~one.lost
        alive, applied = alive + members.bit_count(), applied + (one.applied & members).bit_count()
    return applied / alive if alive else 0.0


def compute_round_limit_s(config: Config) -> float:
    """How long a round may last at most, as simulated time has it."""
    return config.max_round_train_time + config.round_witness_time + GRAIN_S + TICK_S


def get_durations(rounds: list[RoundFacts]) -> list[float]:
    """Seconds from start to close, rising."""
    return sorted(one.end_s - one.start_s for one in rounds)


def compute_median(values: list[float]) -> float:
    return values[len(values) // 2] if values else 0.0
