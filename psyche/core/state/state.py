"""The whole state of a training run as plain data (`docs/protocol-reference.md`, section State).

Bitmaps of members are integers: bit i stands for member i. Hashes have 32 bytes; all zero means unset. Times are
unix seconds, passed in by the caller. Fields of features that do not exist yet are zero.
"""

# pyright: reportUnusedImport=false
# The settings and the enumerations can be had from here too.

from dataclasses import dataclass, field

from psyche.core.state.enums import (
    Architecture,
    AuditReason,
    AuditStatus,
    ChallengeState,
    CheckpointKind,
    ClientFlag,
    ClientState,
    DataLocationKind,
    DataType,
    HttpLocationKind,
    InnerOptimizer,
    Lookahead,
    OptimizerKind,
    Role,
    RoundFlag,
    RunState,
    ScheduleKind,
    SlotState,
    StopReason,
    TokenSize,
    WitnessFlag,
)
from psyche.core.state.limits import MAX_CHALLENGES, MAX_CLIENTS, NO_UPLOADER, STORED_ROUNDS
from psyche.core.state.settings import (
    ZERO32,
    Checkpoint,
    Config,
    DataLocation,
    HttpLocation,
    LrSchedule,
    Metadata,
    Model,
    Optimizer,
    Progress,
)


@dataclass(slots=True)
class Mark:
    """Recorded weights and the progress they belong to: `certified` and `checkpoint` (P3, S10)."""

    digest: bytes = ZERO32
    epoch: int = 0
    uploader: int = NO_UPLOADER  # slot number
    step: int = 0
    data_index: int = 0


@dataclass(slots=True)
class WitnessRecord:
    """One witness's report as recorded (W1 to W5)."""

    member: int = 0
    flags: WitnessFlag = WitnessFlag(0)
    at_s: int = 0  # seconds since the round's start, as stated by the witness
    held: int = 0
    heard: int = 0
    missing: int = 0
    broadcast_bloom: bytes = bytes(320)
    results_root: bytes = ZERO32
    state_digest: bytes = ZERO32


@dataclass(slots=True)
class Audit:
    """What one verifier found (V9)."""

    verifier: int = 0
    target: int = 0  # NOBODY: it found nothing
    status: AuditStatus = AuditStatus.PASSED
    reason: AuditReason = AuditReason.NONE
    piece: int = 0
    commit: bytes = ZERO32  # of the target's result, or of the verifier's own report


@dataclass(slots=True)
class Round:
    """One round of the ring."""

    seed: bytes = ZERO32
    members: int = 0
    agreed_held: int = 0
    agreed_root: bytes = ZERO32
    agreed_digest: bytes = ZERO32
    mix: bytes = ZERO32
    random_seed: int = 0
    data_index: int = 0
    started_unix: int = 0
    entropy_slot: int = 0
    height: int = 0
    step: int = 0
    batch_size: int = 0
    clients_len: int = 0
    witnesses_expected: int = 0
    quorum: int = 0
    complete_len: int = 0
    tie_breaker_tasks: int = 0
    flags: RoundFlag = RoundFlag(0)
    voided: int = 0
    electors: int = 0  # M10: bitmap of the members that may be elected witnesses
    witnesses: list[WitnessRecord] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)


@dataclass(slots=True)
class Client:
    """A member of the epoch; its index never changes within the epoch."""

    signer: bytes = ZERO32
    p2p: bytes = ZERO32
    state: ClientState = ClientState.HEALTHY
    missed: int = 0
    late: int = 0
    witness_missed: int = 0
    flags: ClientFlag = ClientFlag(0)
    share: int = 0
    slot: int = 0
    joined_height: int = 0
    exited_height: int = 0
    credits: int = 0
    witness_credits: int = 0
    audits_passed: int = 0
    audits_failed: int = 0
    false_challenges: int = 0
    numeric_class: int = 0
    good_streak: int = 0
    witness_checked_height: int = 0


@dataclass(slots=True)
class StartCandidate:
    """A digest shown in the first Warmup, before any weights are certified, and how many members show it (S8)."""

    digest: bytes = ZERO32
    count: int = 0


@dataclass(slots=True)
class Epoch:
    """The epoch's header; its members and rounds are in `Coordinator`."""

    rounds_head: int = 0
    start_step: int = 0
    drain_from_height: int = 0  # 0: not draining
    ready_len: int = 0
    start_timestamp: int = 0
    ready_quorum_unix: int = 0
    void_streak: int = 0
    digest_streak: int = 0
    warmup_failures: int = 0
    first_round: bool = False
    cold_start: bool = False
    stop_reason: StopReason = StopReason.NONE
    start_candidates: list[StartCandidate] = field(default_factory=list)
    credit_total: int = 0
    checkpoint_sources: int = 0  # accepted in this Cooldown (P10)


@dataclass(slots=True)
class Challenge:
    """An entry of the table of challenges (V12). `verifier` and `target` are slots: members change with the epoch."""

    target_commitment: bytes = ZERO32
    evidence: bytes = ZERO32
    height: int = 0
    opened_height: int = 0
    deadline_height: int = 0  # of the running epoch: the jury of the round before judges until this one closes
    verifier: int = 0
    target: int = 0
    state: ChallengeState = ChallengeState.FREE
    reason: AuditReason = AuditReason.NONE
    guilty: int = 0
    innocent: int = 0
    epoch: int = 0  # of the audited round
    piece: int = 0
    voters: int = 0


@dataclass(slots=True)
class Slot:
    """An entry of the registry: one signer."""

    signer: bytes = ZERO32
    p2p: bytes = ZERO32
    earned: int = 0
    slashed: int = 0
    stake: int = 0
    joined_unix: int = 0
    expires_unix: int = 0
    active: int = 0
    last_epoch: int = 0
    state: SlotState = SlotState.FREE
    strikes: int = 0
    until: int = 0
    anchor: bytes = ZERO32
    proven: bool = False  # M10: it has had a credit
    fruitless: int = 0  # M10: fruitless epochs in a row
    false_challenges: int = 0  # V12: accusations of which a jury cleared the accused


@dataclass(slots=True)
class Registry:
    """The slots of all participants, in order of first joining, and the rates that they earn."""

    next_active: int = 0
    current_earning_rate: int = 0
    current_slashing_rate: int = 0
    future_earning_rate: int = 0
    future_slashing_rate: int = 0
    carry: int = 0
    slots: list[Slot] = field(default_factory=list)


@dataclass(slots=True)
class Coordinator:
    """The state of a run. `core.encoding.account` encodes it, `core.rules.apply` changes it."""

    metadata: Metadata = field(default_factory=Metadata)
    client_version: str = ""
    run_id: str = ""
    run_uid: bytes = ZERO32
    run_state: RunState = RunState.UNINITIALIZED
    state_start_unix: int = 0
    pending_pause: bool = False
    model: Model = field(default_factory=Model)
    config: Config = field(default_factory=Config)
    progress: Progress = field(default_factory=Progress)
    last_seed: bytes = ZERO32
    certified: Mark = field(default_factory=Mark)
    checkpoint: Mark = field(default_factory=Mark)
    epoch: Epoch = field(default_factory=Epoch)
    rounds: list[Round] = field(default_factory=lambda: [Round() for _ in range(STORED_ROUNDS)])
    clients: list[Client] = field(default_factory=list)
    challenges: list[Challenge] = field(default_factory=lambda: [Challenge() for _ in range(MAX_CHALLENGES)])
    registry: Registry = field(default_factory=Registry)
    nonce: int = 0
    bootstrap: list[str] = field(default_factory=list[str])  # up to four addresses of nodes (N3)

    @property
    def current(self) -> Round:
        return self.rounds[self.epoch.rounds_head % STORED_ROUNDS]

    @property
    def halted(self) -> bool:
        """Whether the run is uninitialized, finished or paused: only the owner can move it on."""
        return self.run_state in (RunState.UNINITIALIZED, RunState.FINISHED, RunState.PAUSED)

    @property
    def in_round(self) -> bool:
        return self.run_state in (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)


assert MAX_CLIENTS % 64 == 0, "bitmaps are whole u64 words"
