"""Forecasts a run by playing it, from the owner's configuration, a population, and a seed.

forecast = play(Question(run=run, workload=workload, classes=classes, counts=counts, rounds=10))
print(format_forecast(forecast))
"""

from collections import Counter
from dataclasses import dataclass

from psyche.analysis.accounts import WORLD, Accounts, NodeAccount
from psyche.core.state.state import RunState
from psyche.forecast.question import Question, build_scenario, compute_patience_s_of
from psyche.forecast.recorder import Carried, EarlyExit, OnProgress, Recorder, count_bytes
from psyche.sim.faults import Fault
from psyche.sim.invariants.checker import Violation
from psyche.sim.scenarios.scenario import build_small_model
from psyche.sim.stall_detection import StallDetector
from psyche.sim.world import Outcome, World, simulate
from psyche.telemetry import types
from psyche.telemetry.events import Entry, encode_entry


@dataclass(slots=True)
class Forecast:
    """The outcome of a play. `carried` is by client."""

    question: Question
    accounts: Accounts
    outcome: Outcome
    exits: list[EarlyExit]
    carried: dict[str, Carried]
    obstacle: str = ""  # why it was stopped early; empty if it was not
    missed: tuple[Fault, ...] = ()  # faults of the question that never happened

    @property
    def stood_still(self) -> bool:
        is_finished = self.outcome.state.run_state is RunState.FINISHED
        return not is_finished and any(violation.name == "I5" for violation in self.outcome.violations)

    @property
    def defects(self) -> list[Violation]:
        return [one for one in self.outcome.violations if not (self.stood_still and one.name == "I5")]

    @property
    def lost_samples(self) -> float:
        return self.accounts.lost_tokens / self.question.workload.sequence_tokens

    @property
    def samples(self) -> float:
        return self.lost_samples + self.accounts.tokens / self.question.workload.sequence_tokens

    @property
    def came_to_nothing(self) -> bool:
        return bool(self.accounts.data_rounds) and not self.accounts.tokens

    @property
    def members(self) -> list[NodeAccount]:
        return [node for node in self.accounts.nodes.values() if node.present]

    @property
    def cut_offs(self) -> int:
        return sum(len(node.cut_off) for node in self.accounts.nodes.values())


def play(question: Question, *, on_progress: OnProgress | None = None, keep_lines: bool = False) -> Forecast:
    """Play a question to its end; takes seconds to minutes on one core."""
    recorder = Recorder(question.config, question.workload, on_progress, question.backend.reference)
    detectors: list[StallDetector] = []
    joined_s = max(60 * one.joins_after_min for one in question.classes)

    def prepare(world: World) -> None:
        recorder.attach(world)
        patience_s = compute_patience_s_of(question)
        detectors.append(StallDetector(world, patience_s=patience_s, since_s=joined_s, planned=question.faults))
        world.companions.append(detectors[0].watch)

    outcome = simulate(build_scenario(question), keep_lines=keep_lines, prepare=prepare)
    recorder.accounts.finish()
    return Forecast(
        question, recorder.accounts, outcome, recorder.exits, count_bytes(recorder), detectors[0].obstacle,
        find_missed(question.faults, recorder.world.happened),
    )  # fmt: skip


def build_log(forecast: Forecast) -> bytes:
    """Build the event log of a forecast that kept its lines, with the scale of its small model: `read_accounts` of it
    gives the forecast's own figures.
    """
    question, end_s = forecast.question, forecast.outcome.simulated_s
    played = types.Simulated(
        limit_s=question.config.max_round_train_time, overlap=bool(question.config.overlap),
        sequence_tokens=question.workload.sequence_tokens, played_tokens=build_small_model().max_seq_len,
        payload_bytes=question.workload.payload_bytes,
    )  # fmt: skip
    carried = [
        types.Carried(
            who=name, bytes_sent=round(one.sent), bytes_received=round(one.received),
            weights_sent=round(one.weights_sent), weights_received=round(one.weights_received),
        )
        for name, one in forecast.carried.items()
    ]  # fmt: skip

    ended = (Entry(end_s, WORLD, one) for one in carried)
    return b"".join(map(encode_entry, (Entry(0.0, WORLD, played), *forecast.outcome.entries, *ended)))


def find_missed(faults: tuple[Fault, ...], happened: list[Fault]) -> tuple[Fault, ...]:
    return tuple((Counter(faults) - Counter(happened)).elements())  # a plan may have the same fault twice
