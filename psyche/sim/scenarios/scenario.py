"""A scenario as data: the run, its machines and links, its faults, and its liars."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from psyche.backends.kinds import ENTROPY_DELAY_SLOTS, TRAITS, BackendKind
from psyche.client.runtime.departure import LAST_WRITES_S
from psyche.config.load import LoadedRun
from psyche.core.state.limits import WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    Config,
    InnerOptimizer,
    Lookahead,
    LrSchedule,
    Metadata,
    Model,
    Optimizer,
    OptimizerKind,
)
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.sim.byzantine.programs import ByzantineMember
from psyche.sim.faults import Fault, Kill
from psyche.sim.trainer import MachineModel

RUN_ID = "simulated"
START_UNIX = 1_700_000_000
MODEL_FOLDER = "model"
TCP, CHAIN = BACKENDS = tuple(one.value for one in BackendKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineClass:
    """A number of equal clients.

    Args:
        count: the number of clients.
        machine: their speed.
        uplink, downlink: their line to everybody else; a link has both ends' latency and the narrower end's bandwidth.
        join_s: when the first of them starts; the others follow within `join_spread_s`.
        has_model: whether they have the configured model on disk.
        clock_s: the offset of their wall clocks.
    """

    count: int = 1
    machine: MachineModel = field(default_factory=MachineModel)
    uplink: LinkConditions = field(default_factory=LinkConditions)
    downlink: LinkConditions = field(default_factory=LinkConditions)
    join_s: float = 0.0
    join_spread_s: float = 1.0
    has_model: bool = True
    clock_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainConditions:
    """How a chain and its endpoints behave.

    Args:
        slot_s: the length of a slot in seconds.
        skipped: the share of slots without a block.
        clock_lag_s: how far the chain's Clock is behind, at most.
        lag_least_s, lag_most_s: after how many seconds an endpoint shows a block; each client's endpoints have their
            own delay between these two.
        answer_s: how long an endpoint takes to answer, on average; a push comes later by up to twice as much.
        endpoints: the number of endpoints that each client knows, in its order of preference.
        lost: the share of sent transactions that reach no leader.
        late: the share of sent transactions that reach a leader up to `late_s` later than the others.
        cut: the share of pushed accounts that are cut on their way: the client connects again and reads the newest one.
    """

    slot_s: float = 0.4
    skipped: float = 0.05
    clock_lag_s: float = 2.0
    lag_least_s: float = 0.4
    lag_most_s: float = 3.0
    answer_s: float = 0.1
    endpoints: int = 2
    lost: float = 0.0
    late: float = 0.0
    late_s: float = 30.0
    cut: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated run.

    Args:
        seed: the seed of all random choices.
        name: its name, if any.
        classes: the clients, class by class.
        config: settings of the run that differ from `DEFAULTS`.
        faults: the faults and their times.
        byzantine: which clients are dishonest, and how.
        weight_parts: the number of tensors, of equal size, in which the weights are kept and shared.
        blob_bytes: bytes on the line of a blob reply, by its true length; lengths not listed count as they are.
        shares_lines: all bulk traffic of a machine shares one line, as at home; else each pair of machines has
            its own line.
        limits: the limits of the clients' nodes.
        limit_s: when the run must have ended, in simulated seconds; 0: computed.
        must_advance: whether the run must take steps and end (I5); false where too many members lie.
        respawn_s: seconds after which a client that ended by itself without success is restarted; 0: never.
        sync_s: the duration of a write on the server's disk.
        shares_checkpoints: whether clients announce places from which the certified weights can be loaded (S10).
        inner_steps: of local steps from a fresh inner state; 0: DisTrO.
        eval_documents: of the task that members measure the certified weights with; 0: none.
        backend: what keeps the record: a server ("tcp") or a chain ("chain").
        chain: the conditions of the chain; without effect in a run with a server.

    `origin` is the command that replays the scenario, set by code that draws scenarios from seeds (`with_origin`).
    A copy changed with `replace` has no origin: only its plan describes it fully (`report`).
    """

    seed: int = 0
    name: str = ""
    classes: tuple[MachineClass, ...] = (MachineClass(count=4),)
    config: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    byzantine: tuple[ByzantineMember, ...] = ()
    weight_parts: int = 4
    blob_bytes: Mapping[int, int] = field(default_factory=dict)
    shares_lines: bool = False
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    limit_s: float = 0.0
    must_advance: bool = True
    respawn_s: float = 5.0
    sync_s: float = 0.002
    shares_checkpoints: bool = False
    inner_steps: int = 0
    eval_documents: int = 0
    backend: str = TCP
    chain: ChainConditions = field(default_factory=ChainConditions)
    origin: str = field(default="", init=False, compare=False)

    def with_origin(self, command: str) -> "Scenario":
        found = replace(self)
        object.__setattr__(found, "origin", command)  # a copy that nobody else holds yet
        return found

    @property
    def clients(self) -> int:
        return sum(c.count for c in self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"client-{number}" for number in range(self.clients))

    def weigh_blob(self, size_bytes: int) -> float:
        return float(self.blob_bytes.get(size_bytes, size_bytes))

    def get_class(self, number: int) -> MachineClass:
        for found in self.classes:
            if number < found.count:
                return found
            number -= found.count
        raise IndexError("no such client")


FAREWELL_S = 60.0  # for the news of the end, and for goodbyes
LANDING_SLOTS = 4
RESENDS_S = 4.0
DEFAULTS: Mapping[str, int] = {
    "warmup_time": 30, "cooldown_time": 5, "max_round_train_time": 20, "round_witness_time": 6, "rounds_per_epoch": 8,
    "total_steps": 16, "init_min_clients": 2, "min_clients": 2, "global_batch_size_start": 8,
    "global_batch_size_end": 8, "waiting_for_members_extra_time": 3,
}  # fmt: skip


def build_run_config(scenario: Scenario) -> Config:
    usual = {"entropy_delay": TRAITS[scenario.backend].entropy_delay_slots}
    values: dict[str, Any] = dict(DEFAULTS) | usual | dict(scenario.config)
    return Config(**values)


def build_small_model(*, is_verified: bool = False, inner_steps: int = 0) -> Model:
    """A model for DisTrO; with `inner_steps` for so many local steps."""
    optimizer = Optimizer(
        OptimizerKind.DISTRO,
        compression_decay=0.95,
        compression_topk=8,
        compression_chunk=16,
        quantize_1bit=True,
        lookahead=Lookahead.OWN if is_verified else Lookahead.MOMENTUM,
    )
    local = Optimizer(
        OptimizerKind.LOCAL_STEPS,
        compression_topk=8,
        compression_chunk=16,
        inner_steps=inner_steps,
        merge_step=inner_steps * 3 // 4,
        value_bits=2,
        error_decay=0.95,
        outer_rate=1.0,
        inner_optimizer=InnerOptimizer.ADAMW_ANEW,
    )
    return Model(
        max_seq_len=8,
        checkpoint=Checkpoint(CheckpointKind.LOCAL, MODEL_FOLDER),
        lr_schedule=LrSchedule(base_lr=1e-3),
        optimizer=local if inner_steps else optimizer,
    )


def build_run_model(scenario: Scenario) -> Model:
    is_verified = bool(scenario.config.get("verification_percent"))
    return build_small_model(is_verified=is_verified, inner_steps=scenario.inner_steps)


def build_run(config: Config, model: Model) -> LoadedRun:
    """The run as its owner would write it; no file is read or written."""
    return LoadedRun(RUN_ID, config, model, Metadata(), Path("/run.toml"), ())


def compute_transition_s(scenario: Scenario) -> float:
    """How long a change of the record may take from its cause to all members, in seconds; 0 with a server.

    A message is sent, lands after skipped slots, is lost once, and is confirmed. Then the slot of a seed must come, and
    somebody must tick.
    """
    if not TRAITS[scenario.backend].confirmation_s:
        return 0.0
    chain = scenario.chain
    slots_s = (ENTROPY_DELAY_SLOTS + LANDING_SLOTS) * chain.slot_s / (1 - chain.skipped)
    return slots_s + 2 * chain.lag_most_s + RESENDS_S / (1 - chain.lost)


def compute_patience_s(config: Config, faults: Sequence[Fault] = (), transition_s: float = 0.0) -> float:
    """The time within which a run with enough living members must take a step, from any state, in seconds.

    `transition_s` is what each change of the record takes on a chain.

    The longest way: two rounds that time out and close without agreement, Cooldown,
    waiting for members, a Warmup that fails, another that succeeds, then two rounds for the step.
    If `faults` erase disks, nobody may have the certified weights any more, and as many more Warmups fail (P5).
    """
    round_s = config.max_round_train_time + config.round_witness_time + 2 * transition_s
    forming_s = config.waiting_for_members_extra_time + config.warmup_time + 3 * transition_s
    is_erased = any(isinstance(fault, Kill) and fault.erase for fault in faults)
    forms = 3 + (WARMUP_FAILURE_LIMIT_OLD_CHECKPOINT if is_erased else 0)
    return 4 * round_s + config.cooldown_time + forms * forming_s + 30


def compute_farewell_s(config: Config, transition_s: float = 0.0) -> float:
    """The time within which the clients of a finished run have ended, in seconds (P8).

    Each looks for the final weights, serves them, and lets the fetch or write that is still under way end.
    """
    return transition_s + 2 * config.cooldown_time + LAST_WRITES_S + FAREWELL_S


def compute_limit_s(scenario: Scenario, config: Config) -> float:
    """When a run must have ended, in simulated seconds: every epoch takes its longest, after all faults are over."""
    if scenario.limit_s:
        return scenario.limit_s
    transition_s = compute_transition_s(scenario)
    round_s = config.max_round_train_time + config.round_witness_time + 2 * transition_s
    epochs = math.ceil(config.total_steps / max(1, config.rounds_per_epoch)) + 1
    overhead_s = compute_patience_s(config, scenario.faults, transition_s)
    last = max((fault.get_end_s() for fault in scenario.faults), default=0.0)
    return last + config.total_steps * round_s + 2 * epochs * overhead_s + 600
