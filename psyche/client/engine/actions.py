"""The engine's events (what it is told) and actions (what it asks for): plain data. Shell or simulator executes them.

Times named `at` or `deadline` are on the caller's monotonic clock, in seconds.
"""

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, dataclass_transform

from psyche.client.engine.auditing.cases import Case, Link
from psyche.core.encoding.evidence import Evidence as WorkEvidence
from psyche.core.state.gossip import Evidence
from psyche.core.state.messages import Message
from psyche.core.state.state import ZERO32
from psyche.telemetry import types
from psyche.wire.trainer import ApplyReply, AuditReply, LoadReply, SentResult, SnapshotReply, TrainReply


@dataclass_transform(frozen_default=True)
class Told:
    """What engine and shell tell each other: each class below is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Submit(Told):
    """Send a message to the coordinator; log `before` when it is sent, `after` once it is on record."""

    message: Message
    before: types.Event | None = None
    after: types.Event | None = None
    evidence: Evidence | None = None


class Publish(Told):
    raw: bytes


class Announce(Told):
    """Offer the body as a blob, and the work table if there is one, then gossip the signed result."""

    raw: bytes
    body: bytes
    blob_id: bytes
    epoch: int
    height: int
    table: bytes = b""


class FetchPayload(Told):
    """Fetch and check a payload; answer with `PayloadArrived` or `PayloadFailed`."""

    epoch: int
    height: int
    member: int
    commitment: bytes
    blob_id: bytes
    size_bytes: int
    sources: tuple[bytes, ...]
    deadline: float
    is_report: bool = False  # the body is a report of audits, which the engine checks
    table: bytes = ZERO32  # blob id of the work table, of `table_bytes`; zero: there is none
    table_bytes: int = 0


class FetchData(Told):
    """Fetch the samples `start` to `end` (included) ahead of training."""

    epoch: int
    height: int
    start: int
    end: int


class Train(Told):
    """Train the batch that was fetched; answer with `Trained` or `TrainFailed`.

    With local steps `next_lr` is the rate of the next round, `blobs` and `inner_steps` are of the own result in flight,
    if there is one (LS5), and at `deadline` the round is cut short (LS9).
    """

    epoch: int
    height: int
    step: int
    start: int
    end: int
    lr: float
    lookahead_lr: float
    decided: tuple[SentResult, ...]
    in_flight: bool
    next_lr: float = 0.0
    blobs: tuple[bytes, ...] = ()
    inner_steps: tuple[int, ...] = ()
    deadline: float = math.inf
    seed: bytes = b""  # of the round, where the run is verified: the work table is made under it (V3)
    first_sample: int | None = None  # the epoch's, in its first round: the calibration row is of it (V6)


class Audit(Told):
    """Recompute pieces of members, all at the weights of round `height`. Answer with `Audited`."""

    epoch: int
    height: int
    seeds: tuple[bytes, ...]  # of the sketches to make
    cases: tuple[Case, ...]


class Open(Told):
    """Open chunks of the momenta of this client's result of a round, and offer that to verifiers (V11)."""

    epoch: int
    height: int
    member: int
    seed: bytes  # of the round after


class AskOpening(Told):
    """Ask for what a member opens of its result of a round, until the deadline. Answer with `OpeningArrived`."""

    epoch: int
    height: int
    member: int
    keys: tuple[bytes, ...]  # who is asked, in this order
    link: Link
    deadline: float


class CancelAudit(Told):
    """End the running audit: what is done counts."""


class KeepEvidence(Told):
    """Write what a member was judged by to a file, for anybody to judge it again (V13).

    Its `last_result` is the header alone, and `tokens`, `payload` and `opening` are empty: the case names them.
    """

    epoch: int
    member: int
    height: int
    case: Case
    evidence: WorkEvidence


class Held(NamedTuple):
    """A member's result whose payload is here."""

    member: int
    blob: bytes
    inner_steps: int


class CancelTrain(Told):
    """End the training of a round that has passed (A4)."""

    epoch: int
    height: int


class ShortenTrain(Told):
    """Have the training of local steps end by the deadline, with those that it has done by then (LS9)."""

    epoch: int
    height: int
    deadline: float


class Apply(Told):
    """Apply a decided set at the start of a round, and keep it with its bodies for healing. Answer with `Applied`.

    The replay store has it as it is here, so that a replay applies the same with the same parameters (S7).
    """

    epoch: int
    height: int
    step: int
    lr: float
    lr_bits: int
    run_update: bool
    full_digest: bool
    random_seed: int
    applied: tuple[tuple[int, bytes], ...]  # (member, commitment) in order of application
    blobs: tuple[bytes, ...]  # the bodies, in the same order
    inner_steps: tuple[int, ...] = ()  # of local steps: those behind each body


class Load(Told):
    """Load the weights with full digest `certified` (None: the configured source); answer: `Loaded` or `LoadFailed`."""

    epoch: int
    certified: bytes | None
    source_digest: bytes  # digest that the configured source is known to give; zero if unknown
    keep_momentum: bool


class Heal(Told):
    """Load `certified` and replay the epoch's stored sets up to `height`. Answer with `Healed` or `HealFailed` (S7)."""

    epoch: int
    certified: bytes
    height: int


class AskWeights(Told):
    """Ask a member to keep a copy of its weights of the running round (S7). Answer: `WeightsPromised` or none."""

    epoch: int
    height: int
    member: int
    key: bytes


class Compare(Told):
    """Fetch the tensors in which the agreed weights differ from this client's, and load the result (S7).

    `agreed` is the digest on record, `own` that of the weights in the trainer (zero: they are lost),
    `chain` is this client's c of that height (zero: not known). Answer with `Healed` or `HealFailed`.
    """

    epoch: int
    height: int
    agreed: bytes
    own: bytes
    chain: bytes
    helpers: tuple[bytes, ...]  # keys of members that promised a copy
    deadline: float


class WriteSnapshot(Told):
    """Write a resume snapshot and serve it (P6). Answer with `SnapshotWritten`."""

    epoch: int
    height: int
    step: int
    data_index: int
    chain: bytes
    digest: bytes
    prev_commitment: bytes
    decided: tuple[SentResult, ...] = ()


class ReconnectSoon(Told):
    """Members are in a round that this client has not seen: try to reach a lost backend soon."""


class ExportTime(Enum):
    """When a client writes the certified weights for users."""

    NEVER = auto()
    LAST_EPOCH = auto()  # once the run is finished
    EVERY_EPOCH = auto()


class Export(Told):
    """Write the certified weights for users, in the background; `parameters` is their number, 0 if not known."""

    epoch: int
    step: int
    data_index: int
    digest: bytes
    parameters: int


class ShareCheckpoint(Told):
    """Put this client's snapshot of the certified weights in lasting storage and name that place on record (S10)."""

    epoch: int
    step: int
    digest: bytes


class FetchSnapshot(Told):
    """Fetch the snapshot `digest` from peers without loading it into the trainer (P8)."""

    digest: bytes


class FetchAhead(Told):
    """Fetch weights to the disk before the Warmup that needs them. Answer with `FetchedAhead`."""

    digest: bytes


class AskAnnouncements(Told):
    """Ask peers for signed messages of a round from members not in `have`."""

    epoch: int
    height: int
    have: int


class AskTable(Told):
    """Ask a member for the table behind a witness's root (C1, C3, W7). Answer with `TableArrived`."""

    epoch: int
    height: int  # attested height
    member: int  # the witness
    key: bytes  # of the peer to ask: the witness or any other member
    root: bytes


class SetPeers(Told):
    """The keys that may talk to this node (joined and leaving slots); which are members of this or the last epoch."""

    keys: frozenset[bytes]
    members: frozenset[bytes]


class SetPlan(Told):
    """Set the run uid and plan hash that hello compares."""

    run_uid: bytes
    plan_hash: bytes


class Expire(Told):
    """Drop the payloads of the rounds before this one: they are over for good."""

    epoch: int
    height: int


class Exit(Told):
    code: int
    reason: str
    cause: types.LeaveCause
    serve_s: float = 0.0  # P8: how long to go on serving


Action = (
    Submit | Publish | Announce
    | FetchPayload | FetchData | Train | CancelTrain | ShortenTrain | Apply | Load | Heal | AskWeights | Compare
    | WriteSnapshot | Export | ShareCheckpoint | FetchSnapshot | FetchAhead | AskAnnouncements | AskTable | SetPeers
    | SetPlan | Expire | ReconnectSoon | Audit | CancelAudit | KeepEvidence | Open | AskOpening | Exit
    | types.Event  # to be logged; the deadline of a wait is on the caller's clock, which is not the log's
)  # fmt: skip


class Loaded(Told):
    """Weights with this full digest are in the trainer."""

    epoch: int
    digest: bytes
    source: types.WeightSource
    reply: LoadReply


class LoadFailed(Told):
    """No source can provide the requested weights at the moment; `for_good`: this client never can train them."""

    epoch: int
    reason: str
    for_good: bool = False


class Healed(Told):
    """The trainer holds the healed weights. `digests` by height; `chain` is c of the last height (`height`)."""

    epoch: int
    height: int
    chain: bytes
    digests: dict[int, bytes]
    is_full: dict[int, bool]


class HealFailed(Told):
    """This attempt did not produce the agreed weights; `weights_kept`: the trainer still has its own.

    `contradicts`: the agreed digest belongs to other sets than those this client read from the record.
    """

    epoch: int
    reason: str
    weights_kept: bool
    contradicts: bool = False


class WeightsPromised(Told):
    epoch: int
    height: int
    member: int


class PayloadArrived(Told):
    """A payload is here and checked (R4); with its work table, and the body if it is a report."""

    commitment: bytes
    table: bytes = b""
    report: bytes = b""


class PayloadFailed(Told):
    """A payload could not be fetched (`refused` false: try again) or breaks a rule (`refused` true)."""

    commitment: bytes
    reason: str
    refused: bool


class Trained(Told):
    """A batch is trained; `merged` are the members whose results of the round before were merged in it (LS7)."""

    epoch: int
    height: int
    reply: TrainReply
    data_hash: bytes
    merged: int = 0


class Audited(Told):
    """The answer to an audit; `reply` None: nothing could be recomputed, and `reason` says why."""

    audit: Audit
    reply: AuditReply | None
    reason: str = ""


class OpeningArrived(Told):
    """The answer to `AskOpening`: the opening's blob id, zero if nobody has it; `is_forged`: what came is not of it."""

    epoch: int
    height: int
    member: int
    opening: bytes
    is_forged: bool = False


class TrainFailed(Told):
    """The data or the trainer failed; `trainer_lost`: weights and momentum are gone with the trainer process.

    `for_good`: the run's data does not fit its model, and never will.
    """

    epoch: int
    height: int
    reason: str
    trainer_lost: bool
    for_good: bool = False


class Applied(Told):
    epoch: int
    height: int
    reply: ApplyReply


class TrainerLost(Told):
    """The trainer died outside a batch: weights and momentum are gone (F20, F21)."""

    reason: str


class SnapshotWritten(Told):
    """A resume snapshot is on disk. If `reply` is None, writing failed, and `failed` is the request."""

    epoch: int
    height: int
    digest: bytes
    reply: SnapshotReply | None
    failed: WriteSnapshot | None = None


class TableArrived(Told):
    """The answer to `AskTable`: encoded signed results; None if no answer came."""

    epoch: int
    height: int
    member: int
    root: bytes
    items: tuple[bytes, ...] | None


class FetchedAhead(Told):
    digest: bytes
    ok: bool


class SnapshotFetched(Told):
    digest: bytes
    ok: bool


EngineEvent = (
    Loaded | LoadFailed | Healed | HealFailed | WeightsPromised | PayloadArrived | PayloadFailed | Trained
    | TrainFailed | Applied | Audited | OpeningArrived | TrainerLost | SnapshotWritten | TableArrived | SnapshotFetched
    | FetchedAhead
)  # fmt: skip
