"""A question to `psyche simulate`, and the simulated world that answers it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from psyche.backends.kinds import Fit
from psyche.config.load import LoadedRun
from psyche.config.profile import ClassTable
from psyche.core.state.state import Config
from psyche.errors import ConfigError
from psyche.forecast.backends import ForecastBackend
from psyche.forecast.recorder import BODY_BYTES, PARTS, build_sizes
from psyche.forecast.workload import Workload
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.sim.faults import Failure, Fault
from psyche.sim.runtime import build_rng
from psyche.sim.scenarios.scenario import (
    MachineClass,
    Scenario,
    build_run_config,
    build_small_model,
    compute_limit_s,
    compute_patience_s,
    compute_transition_s,
)
from psyche.sim.trainer import MachineModel

MOST_ROUNDS: Final = 100_000  # days of processor time
PART_BYTES: Final = 4 << 20  # a node writes large payloads in parts of this size
BYTES_PER_MBIT: Final = 125_000
PATIENCES: Final = 3  # times as long as a sound run may need for a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    run: LoadedRun  # the run as its owner wrote it
    workload: Workload  # sizes of the real model
    classes: tuple[ClassTable, ...]  # classes of machines, and the number of clients of each
    counts: tuple[int, ...]
    rounds: int  # number of rounds with data
    seed: int = 0  # of all randomness
    faults: tuple[Fault, ...] = ()  # in addition to the classes' random failures
    changes: Mapping[str, int] = field(default_factory=dict)  # [config] keys whose values differ from the run's
    backend: ForecastBackend = field(default_factory=ForecastBackend)  # what keeps the record

    @property
    def config(self) -> Config:
        """The configuration to play: the run's, with the changes, as it goes on record."""
        return self._fit.config

    @property
    def cautions(self) -> list[str]:
        """What `run create` warns of."""
        return self._fit.warnings

    @property
    def problems(self) -> list[str]:
        """What cannot run on the backend."""
        return self._fit.problems

    @property
    def _fit(self) -> Fit:
        config = replace(self.run.config, **self.changes)
        return self.backend.traits.fit(config, self.run.model, self.run.bootstrap)

    @property
    def clients(self) -> int:
        return sum(self.counts)

    def get_class(self, name: str) -> ClassTable:
        number = int(name.removeprefix("client-"))
        for one, count in zip(self.classes, self.counts, strict=True):
            if number < count:
                return one
            number -= count
        raise IndexError(name)


def check_question(question: Question) -> None:
    config, clients = question.config, question.clients
    if clients < config.init_min_clients:
        raise ConfigError(
            f"{question.run.path}: config.init_min_clients is {config.init_min_clients}, but only {clients} "
            "clients take part, so no epoch could ever form -> raise --clients, or lower init_min_clients"
        )
    if question.problems:
        raise ConfigError("\n".join(f"{question.run.path}: {problem}" for problem in question.problems))
    if not 1 <= question.rounds <= MOST_ROUNDS:
        raise ConfigError(f"--rounds {question.rounds}: must be from 1 to {MOST_ROUNDS}")


def build_scenario(question: Question) -> Scenario:
    check_question(question)
    config, workload = question.config, question.workload
    values: dict[str, Any] = {one.name: getattr(config, one.name) for one in fields(Config)}
    small = build_small_model().max_seq_len  # tokens of a simulated sample
    values["total_steps"] = question.rounds + 1
    values["global_batch_size_warmup_tokens"] = (
        config.global_batch_size_warmup_tokens * small // workload.sequence_tokens
    )
    population = [pair for pair in zip(question.classes, question.counts, strict=True) if pair[1]]
    scenario = Scenario(
        seed=question.seed, classes=tuple(build_class(one, count, workload) for one, count in population),
        config=values, blob_bytes=build_sizes(workload), weight_parts=PARTS, shares_lines=True,
        limits=build_limits(workload, min(one.up_mbit_s for one, _ in population) * BYTES_PER_MBIT),
        backend=question.backend.traits.kind, chain=question.backend.conditions,
    )  # fmt: skip
    limit_s = compute_end_s(question, scenario)
    return replace(scenario, limit_s=limit_s, faults=(*question.faults, *draw_failures(question, limit_s)))


def compute_end_s(question: Question, scenario: Scenario) -> float:
    """The time limit of the play: enough for all joins, the rounds, planned faults, and waits for failed machines."""
    joined_s = max(60 * one.joins_after_min for one in question.classes)
    planned = replace(scenario, faults=question.faults)
    epochs = question.rounds // max(1, question.config.rounds_per_epoch) + 2
    waits_s = epochs * compute_patience_s_of(question)  # each epoch may have to wait for machines that come back
    return joined_s + 1.5 * compute_limit_s(planned, build_run_config(planned)) + waits_s


def build_limits(workload: Workload, slowest_bytes_s: float) -> NetworkLimits:
    """A node's limits, scaled so that it is as patient as with the real payloads and weights.

    Real tensors are fetched in ranges of about two seconds. A part of the small model takes longer: each source is
    asked for one at a time, and a second source only after three times what the slowest line needs for it.
    """
    usual = NetworkLimits()
    slowest = usual.slowest_rate_bytes_s * BODY_BYTES / workload.payload_bytes
    patience_s = workload.payload_bytes / usual.slowest_rate_bytes_s
    part_bytes = workload.weights_bytes / PARTS
    return replace(
        usual, slowest_rate_bytes_s=min(usual.slowest_rate_bytes_s, slowest),
        min_progress_s=max(usual.min_progress_s, patience_s),
        file_progress_s=max(usual.file_progress_s, part_bytes / usual.slowest_rate_bytes_s),
        take_over_s=max(usual.take_over_s, 3 * part_bytes / slowest_bytes_s), blobs_in_flight=1,
        write_s=usual.write_s * max(1.0, workload.payload_bytes / PART_BYTES, workload.weights_bytes / PART_BYTES),
    )  # fmt: skip


def build_class(one: ClassTable, count: int, workload: Workload) -> MachineClass:
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


def compute_patience_s_of(question: Question) -> float:
    """Seconds without progress after which a forecast ends; long enough for a failed machine to come back."""
    back_s = [60 * (one.back_after_min or 0.0) for one in question.classes if one.fails_every_h is not None]
    backend = question.backend
    transition_s = compute_transition_s(Scenario(backend=backend.traits.kind, chain=backend.conditions))
    patience_s = compute_patience_s(question.config, transition_s=transition_s)
    return PATIENCES * (patience_s + max(back_s, default=0.0))


def estimate_slowest_s(question: Question) -> float:
    """Seconds that the slowest class needs to train its share of a round, with its own spread."""
    samples = -(-question.config.global_batch_size_end // question.clients)
    return max(
        (samples * question.workload.sequence_tokens / one.tokens_per_s + one.step_s) * (1 + one.spread_percent / 100)
        for one, count in zip(question.classes, question.counts, strict=True)
        if count
    )


def estimate_sending_s(question: Question) -> float:
    slowest = min(one.up_mbit_s for one, count in zip(question.classes, question.counts, strict=True) if count)
    return question.workload.payload_bytes * (question.clients - 1) * 8e-6 / slowest
