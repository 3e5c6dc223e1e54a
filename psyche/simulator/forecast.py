"""What a run will do, found by playing it: the run owner's configuration, a population, and a seed.

forecast = play(Question(run, workload, classes, counts))
print(format_forecast(forecast))
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from psyche.config.load import LoadedRun
from psyche.config.profile import ClassTable
from psyche.core.state import Config
from psyche.errors import ConfigError
from psyche.network.limits import NetworkLimits
from psyche.network.links import LinkConditions
from psyche.simulator.accounts import CARRIED, SIMULATED, WORLD, Accounts, NodeAccount
from psyche.simulator.faults import Failure, Fault
from psyche.simulator.headway import Headway, compute_patience_s_of, find_missed
from psyche.simulator.recorder import BODY_BYTES, PARTS, Carried, Exit, OnProgress, Recorder, build_sizes, count_bytes
from psyche.simulator.runtime import build_rng
from psyche.simulator.scenario import MachineClass, Scenario, build_config, build_model, compute_limit_s
from psyche.simulator.trainer import MachineModel
from psyche.simulator.workload import Workload
from psyche.simulator.world import Outcome, World, simulate
from psyche.telemetry.events import Event

MOST_ROUNDS: Final = 100_000  # days of a processor
PART_BYTES: Final = 4 << 20  # what a node writes at once of a large payload
BYTES_PER_MBIT: Final = 125_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be found out.

    Args:
        run: as its owner wrote it.
        workload: what its model means.
        classes, counts: who takes part, and how many of each.
        rounds: how many rounds with data.
        seed: of all chance.
        faults: beside the failures that the classes have.
        changes: keys of [config] that are to differ from the run's.
    """

    run: LoadedRun
    workload: Workload
    classes: tuple[ClassTable, ...]
    counts: tuple[int, ...]
    rounds: int = 20
    seed: int = 0
    faults: tuple[Fault, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration that is played."""
        return replace(self.run.config, **self.changes)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return sum(self.counts)

    def get_class(self, name: str) -> ClassTable:
        """The class of a client, by its name."""
        number = int(name.removeprefix("client-"))
        for one, count in zip(self.classes, self.counts, strict=True):
            if number < count:
                return one
            number -= count
        raise IndexError(name)


@dataclass(slots=True)
class Forecast:
    """What came out. `carried` is by client; `lines` is the event log, where it was kept."""

    question: Question
    accounts: Accounts
    outcome: Outcome
    exits: list[Exit]
    carried: dict[str, Carried]
    obstacle: str = ""  # why it was ended before its end
    missed: tuple[Fault, ...] = ()  # of the question's: they never happened

    @property
    def stood_still(self) -> bool:
        """Whether the run did not come to its end."""
        return any(violation.name == "I5" for violation in self.outcome.violations)

    @property
    def lost_samples(self) -> float:
        """Samples handed out whose training counts nowhere."""
        return self.accounts.lost_tokens / self.question.workload.sequence_tokens

    @property
    def samples(self) -> float:
        """Samples handed out in rounds that were decided."""
        return self.lost_samples + self.accounts.tokens / self.question.workload.sequence_tokens

    @property
    def came_to_nothing(self) -> bool:
        """Whether rounds were played, and no result of any was applied."""
        return bool(self.accounts.data_rounds) and not self.accounts.tokens

    @property
    def members(self) -> list[NodeAccount]:
        """Clients that were a member in some round."""
        return [node for node in self.accounts.nodes.values() if node.present]

    @property
    def cut_offs(self) -> int:
        """How often a member's work of a round counted for nothing."""
        return sum(len(node.cut_off) for node in self.accounts.nodes.values())


# --- from the question to a scenario ------------------------------------------------------------------


def check_question(question: Question) -> None:
    """Refuse what cannot be played.

    Raises:
        ConfigError: naming the key and the rule.
    """
    config, clients = question.config, question.clients
    if clients < config.init_min_clients:
        raise ConfigError(
            f"{question.run.path}: config.init_min_clients is {config.init_min_clients}, and there are {clients} "
            "clients: no epoch would ever form -> more --clients, or a lower init_min_clients"
        )
    if not 1 <= question.rounds <= MOST_ROUNDS:
        raise ConfigError(f"--rounds {question.rounds}: must be from 1 to {MOST_ROUNDS}")


def build_scenario(question: Question) -> Scenario:
    """The question as a simulated world."""
    check_question(question)
    config, workload = question.config, question.workload
    values: dict[str, Any] = {one.name: getattr(config, one.name) for one in fields(Config)}
    small = build_model().max_seq_len  # tokens of a simulated sample
    values["total_steps"] = question.rounds + 1
    values["global_batch_size_warmup_tokens"] = (
        config.global_batch_size_warmup_tokens * small // workload.sequence_tokens
    )
    population = [pair for pair in zip(question.classes, question.counts, strict=True) if pair[1]]
    scenario = Scenario(
        seed=question.seed, classes=tuple(build_class(one, count, workload) for one, count in population),
        config=values, blob_bytes=build_sizes(workload), weight_parts=PARTS, shares_lines=True,
        limits=build_limits(workload, min(one.up_mbit_s for one, _ in population) * BYTES_PER_MBIT),
    )  # fmt: skip
    limit_s = compute_end_s(question, scenario)
    return replace(scenario, limit_s=limit_s, faults=(*question.faults, *draw_failures(question, limit_s)))


def compute_end_s(question: Question, scenario: Scenario) -> float:
    """When the played rounds must be over, after everybody has joined and what the plan has is done."""
    joined_s = max(60 * one.joins_after_min for one in question.classes)
    planned = replace(scenario, faults=question.faults)
    epochs = question.rounds // max(1, question.config.rounds_per_epoch) + 2
    waits_s = epochs * compute_patience_s_of(question)  # each may have to wait for machines that come back
    return joined_s + 1.5 * compute_limit_s(planned, build_config(planned)) + waits_s


def build_limits(workload: Workload, slowest_bytes_s: float) -> NetworkLimits:
    """A node's limits, with the same patience for the bytes that a payload, or a part of the weights, stands for.

    Real tensors come in ranges of about two seconds. A part of the small model's takes longer: each source is asked
    for one at a time, and another one for the same when the slowest line would have brought it in a third.
    """
    usual = NetworkLimits()
    slowest = usual.slowest_rate_bytes_s * BODY_BYTES / workload.payload_bytes
    patience_s = workload.payload_bytes / usual.slowest_rate_bytes_s
    part_bytes = workload.weights_bytes / PARTS
    return replace(
        usual,
        slowest_rate_bytes_s=min(usual.slowest_rate_bytes_s, slowest),
        min_progress_s=max(usual.min_progress_s, patience_s),
        file_progress_s=max(usual.file_progress_s, part_bytes / usual.slowest_rate_bytes_s),
        take_over_s=max(usual.take_over_s, 3 * part_bytes / slowest_bytes_s),
        blobs_in_flight=1,
        write_s=usual.write_s * max(1.0, workload.payload_bytes / PART_BYTES, workload.weights_bytes / PART_BYTES),
    )


def build_class(one: ClassTable, count: int, workload: Workload) -> MachineClass:
    """A class of the profile as simulated machines."""

    def build_line(mbit_s: float) -> LinkConditions:
        return LinkConditions(
            latency_s=one.latency_ms / 2_000, bandwidth_bytes_s=mbit_s * BYTES_PER_MBIT,
            loss=1 - (1 - one.loss_percent / 100) ** 0.5, jitter_s=one.jitter_ms / 2_000,
        )  # fmt: skip

    machine = MachineModel(
        sample_s=workload.sequence_tokens / one.tokens_per_s, step_s=one.step_s, spread=one.spread_percent / 100,
        apply_s=one.apply_s, load_s=one.load_s,
    )  # fmt: skip
    return MachineClass(
        count=count, machine=machine, uplink=build_line(one.up_mbit_s), downlink=build_line(one.down_mbit_s),
        join_s=60 * one.joins_after_min,
    )  # fmt: skip


def draw_failures(question: Question, limit_s: float) -> list[Fault]:
    """When machines fail, by their classes' mean time to failure."""
    found: list[Fault] = []
    for number in range(question.clients):
        name = f"client-{number}"
        one, rng = question.get_class(name), build_rng(question.seed, name, "failures")
        if one.fails_every_h is None:
            continue
        back_s = 60 * (one.back_after_min or 0.0)
        at_s = rng.expovariate(1 / (3600 * one.fails_every_h))
        while at_s < limit_s:
            found.append(Failure(who=(name,), at_s=at_s, for_s=back_s))
            if not back_s:
                break
            at_s += back_s + rng.expovariate(1 / (3600 * one.fails_every_h))
    return found


# --- playing ------------------------------------------------------------------------------------------


def play(question: Question, *, on_progress: OnProgress | None = None, keep_lines: bool = False) -> Forecast:
    """Play a question to its end; takes seconds to minutes of one core.

    Raises:
        ConfigError: it cannot be played.
    """
    recorder = Recorder(question.config, question.workload, on_progress)
    headways: list[Headway] = []

    def prepare(world: World) -> None:
        recorder.attach(world)
        headways.append(Headway(world, question))
        world.companions.append(headways[0].watch)

    outcome = simulate(build_scenario(question), keep_lines=keep_lines, prepare=prepare)
    recorder.accounts.finish()
    return Forecast(
        question, recorder.accounts, outcome, recorder.exits, count_bytes(recorder), headways[0].obstacle,
        find_missed(question.faults, recorder.world.happened),
    )  # fmt: skip


def build_log(forecast: Forecast) -> bytes:
    """The event log of a forecast that kept its lines, with what its small model stands for: `read_accounts` gives
    the forecast's own figures for it.
    """
    question, end_s = forecast.question, forecast.outcome.simulated_s
    played: Event = {
        "t": 0.0, "node": WORLD, "kind": SIMULATED, "limit_s": question.config.max_round_train_time,
        "overlap": bool(question.config.overlap), "sequence_tokens": question.workload.sequence_tokens,
        "played_tokens": build_model().max_seq_len, "payload_bytes": question.workload.payload_bytes,
    }  # fmt: skip
    carried: list[Event] = [
        {"t": end_s, "node": WORLD, "kind": CARRIED, "who": name, "bytes_sent": round(one.sent),
         "bytes_received": round(one.received), "weights_sent": round(one.weights_sent),
         "weights_received": round(one.weights_received)}
        for name, one in forecast.carried.items()
    ]  # fmt: skip

    def write(event: Event) -> bytes:
        return json.dumps(event, separators=(",", ":")).encode() + b"\n"

    return b"".join((write(played), *forecast.outcome.lines, *map(write, carried)))
