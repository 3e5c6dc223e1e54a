"""The messages between a client and its trainer (length-prefixed msgpack between processes).

Payloads and token ids are bytes; tensors are exchanged only as files.
"""

import math
from typing import Final, TypeAlias

import msgspec

from psyche.core.state.state import Model


class SentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The record's decision on an earlier result of this client: applied or not."""

    height: int
    applied: bool


OFFLOADED: Final = ("optimizer", "look-ahead copy")  # parts of the memory that are on the host with `offload`


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one trainer: `data_parallelism` times `tensor_parallelism` of them.

    With `rendezvous` (HOST:PORT of this machine), those that this machine lacks are other machines'.
    """

    device: str = "auto"
    data_parallelism: int = 1
    tensor_parallelism: int = 1
    rendezvous: str = ""

    @property
    def ranks(self) -> int:
        return self.data_parallelism * self.tensor_parallelism


class CheckRequest(Devices, frozen=True, kw_only=True, tag="check"):
    """Ask, before anything is loaded, whether the trainer can compute on its devices.

    With `config`, the path of a config.json or of a model folder, it also asks what transformers makes of it for
    sequences of `max_seq_len` (0: of any length).
    """

    config: str = ""
    max_seq_len: int = 0


class CheckReply(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    """The device; and of a model the names and shapes in memory of what is trained and of persistent buffers."""

    device: str
    parameters: dict[str, tuple[int, ...]] = {}
    buffers: dict[str, tuple[int, ...]] = {}
    vocab_size: int = 0
    positions: int | None = None

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {**self.parameters, **self.buffers}


class LoadRequest(Devices, frozen=True, kw_only=True, tag="load"):
    """Load weights from a folder.

    `path` is a Hugging Face folder or a resume snapshot (`is_snapshot`), whose `chain` and `digest` the client checks,
    not the trainer. With `keep_momentum` false, training starts with zero momentum. A batch has at most `batch_size`
    samples; if that is given, memory is predicted before anything is loaded, and a `micro_batch_size` of 0 is the
    largest that fits. In a run that `verifies` the trainer keeps what audits need (V5, V8); one that `scores` keeps a
    copy of the certified weights, where memory allows.
    """

    path: str
    is_snapshot: bool
    model: Model
    micro_batch_size: int
    keep_momentum: bool = True
    activation_checkpointing: bool = False
    offload: bool = False
    batch_size: int = 0
    verifies: bool = False
    scores: bool = False


class MemoryRequest(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """Ask, before anything is loaded, what a load and the training after it take of a device's memory.

    It is refused if they do not fit, unless `must_fit` is false: then the answer says only what they take.
    """

    load: LoadRequest
    must_fit: bool = True


class MemoryReply(msgspec.Struct, frozen=True, kw_only=True, tag="memory"):
    """For each rank: the bytes of each part at the peak of a step, or a bound of all, and those that are free now."""

    device: str
    micro_batch_size: int
    parts: dict[str, int]
    free_bytes: int


class LoadReply(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """What was loaded.

    `plan` is the transform plan's canonical bytes (`core.encoding.plan`), `weight_root` the full weight part
    of the state digest, which covers the model's small files too (S2), `numeric_class` that of this device,
    `chain` the c of a snapshot (32 zero bytes for other sources), `train_count` the number of batches trained
    with this momentum, `notices` what the trainer does otherwise than config.json (AR5, AR7) or its options say.
    """

    plan: bytes
    weight_root: bytes
    parameters: int
    vocab_size: int
    numeric_class: int
    device: str
    chain: bytes
    train_count: int
    prev_commitment: bytes = bytes(32)
    notices: tuple[str, ...] = ()


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """A member's payload, and of local steps how many inner steps it is of."""

    payload: bytes
    inner_steps: int = 0


class WorkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer shows of its work: a table of pieces of `piece_samples`, sketched by the round's `seed` (V1, V2).

    In an epoch's first round `calibration` is its first sample, as `tokens` are (V6).
    """

    seed: bytes
    piece_samples: int
    calibration: bytes = b""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a batch, and the roots of the momentum before and after it; before the first one zero (V2, V5).

    Of local steps there is no table, and the roots are those of the error memory (LS7).
    """

    table: bytes
    momentum_before: bytes
    momentum_after: bytes


class TrainRequest(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train one batch with the current weights.

    `tokens` are u32 little-endian ids, or with `has_labels` what `wire.data` says: `samples` rows of `sequence_length`.
    `lr` is that of this round, `lookahead_lr` that of the previous round (0: no look-ahead). `decided` are the record's
    decisions on this client's results since the last train. `in_flight` is true with overlap: the client's last result
    is taken out of the momentum whether it is applied or not. `with_statistics` asks for those of each tensor.
    Of local steps `next_lr` is the rate of the round after this one, and `within_s` the time after which the round is
    cut short (LS9). `own` is this client's result in flight, if any: of local steps, and where the look-ahead follows
    it (V4). `work` asks for what verifiers need.
    """

    epoch: int
    height: int
    step: int
    lr: float
    lookahead_lr: float
    tokens: bytes
    samples: int
    sequence_length: int
    decided: tuple[SentResult, ...]
    in_flight: bool
    has_labels: bool = False
    with_statistics: bool = False
    next_lr: float = 0.0
    own: tuple[Contribution, ...] = ()
    work: WorkRequest | None = None
    within_s: float = math.inf


class MergeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="merge"):
    """Go on with a round of local steps that waits for the results in flight: `held` are those that are here (LS5)."""

    held: tuple[Contribution, ...]
    within_s: float = math.inf


class TensorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch does to one tensor; see `psyche.modeling.distro.statistics`."""

    name: str
    update_energy: float
    grad_energy: float
    momentum_norm: float
    agreement: float


class TrainReply(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """The payload (empty if cancelled or refused) and statistics of the batch.

    `loss` is in nats per predicted token, of which there are `tokens`. `refused` is the reason why no result may be
    sent ("non-finite gradient"), empty otherwise. `micro_batch_size` is the size in use after any halvings. With
    `waits_for_merge` the round is not over: a `MergeRequest` goes on with it; any other request gives it up.
    """

    payload: bytes
    loss: float
    grad_norm: float
    tokens: int
    seconds: float
    compute_seconds: float
    micro_batch_size: int
    train_count: int
    cancelled: bool = False
    refused: str = ""
    statistics: tuple[TensorStatistics, ...] = ()
    inner_steps: int = 0
    waits_for_merge: bool = False
    work: Work | None = None


CANCELLED: Final = TrainReply(
    payload=b"", loss=float("nan"), grad_norm=0.0, tokens=0, seconds=0.0, compute_seconds=0.0, micro_batch_size=0,
    train_count=0, cancelled=True,
)  # fmt: skip


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True, tag="apply"):
    """Apply the decided payloads, in ascending order of batch start, with the lr of round `height` (S1).

    `full_digest` asks for the weight part over all tensors, otherwise over the slice of `random_seed`.
    With `run_update` false only the digest is computed (rounds without an apply). Of local steps `inner_steps` are
    those of each payload.
    """

    height: int
    lr: float
    payloads: tuple[bytes, ...]
    run_update: bool
    full_digest: bool
    random_seed: int
    inner_steps: tuple[int, ...] = ()

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        steps = self.inner_steps or (0,) * len(self.payloads)
        return tuple(Contribution(payload=p, inner_steps=n) for p, n in zip(self.payloads, steps, strict=True))


class ApplyReply(msgspec.Struct, frozen=True, kw_only=True, tag="apply"):
    """The weight part of D(h)."""

    weight_part: bytes
    is_full: bool
    seconds: float


class OpenRequest(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """Open chunks of the momenta before and after the own last result, of round `height`; `seed` is the next round's.

    Training makes the next one, whose momenta are others (V5).
    """

    height: int
    seed: bytes
    opened_chunks: int


class OpenReply(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """The opening of the momentum before, unless its root is zero, and behind it that of the momentum after."""

    opening: bytes


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What shows whether a round's gradient went into its payload: chunks of both momenta (V11).

    `opening` is as served, `seed` that of the round after, `lr` that of the round. `taken_out` is the payload of the
    round before, if its values were taken out of the momentum.
    """

    momentum_before: bytes
    momentum_after: bytes
    opening: bytes
    seed: bytes
    opened_chunks: int
    lr: float
    taken_out: tuple[bytes, ...] = ()


class LocalTarget(msgspec.Struct, frozen=True, kw_only=True):
    """How a member took its local steps: the rates of the round and of the next one (LS1).

    It began from the target's `last_body`, if there is one, which is of `in_flight` inner steps (LS5). From inner step
    `merge_step` on, if that is not 0, it had merged what others sent. `done` are the inner steps that it had done
    before, since it joined (LS8).
    """

    rates: tuple[float, float]
    in_flight: int = 0
    merge_step: int = 0
    done: int = 0


class AuditTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of one member's batch, to be computed as it should have.

    `tokens` are the whole batch, which its `data_hash` covers. `last_body` is the payload that its look-ahead follows,
    or that its local steps begin from, empty for none. With `payload`, its own of this round, the reply says how many
    signs agree with the pieces asked for. A `link` needs all pieces and the payload. With `local` its pieces are the
    inner steps of the round.
    """

    tokens: bytes
    samples: int
    sequence_length: int
    piece_samples: int
    pieces: tuple[int, ...]
    numeric_class: int
    lookahead_lr: float = 0.0
    last_body: bytes = b""
    has_labels: bool = False
    payload: bytes = b""
    link: LinkRequest | None = None
    local: LocalTarget | None = None


COPIED_EVERY: Final = 4  # rounds, so that the last four rounds are at most three sets away from a copy of the weights


def get_applied_heights(height: int) -> range:
    """The rounds whose sets lead from the trainer's last copy to the weights of D(`height`) (V8)."""
    return range(height - height % COPIED_EVERY + 1, height + 1)


class AuditRequest(msgspec.Struct, frozen=True, kw_only=True, tag="audit"):
    """Compute pieces of others at the weights of D(`height`), one of the last four rounds; each has a sketch per seed.

    `applies` are the sets of `get_applied_heights`.
    """

    height: int
    seeds: tuple[bytes, ...]
    targets: tuple[AuditTarget, ...]
    applies: tuple[ApplyRequest, ...]


class AuditedPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The summed loss of a piece, and its sketch for each seed."""

    piece: int
    loss: float
    values: tuple[tuple[float, ...], ...]


class AuditedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The pieces that were computed. `agreement` and `link_distance` are -1 where they were not asked for or finished.

    `link_reason` is an `AuditReason`. `refused` says why nothing can be computed for this target.
    """

    pieces: tuple[AuditedPiece, ...] = ()
    agreement: float = -1.0
    link_reason: int = 0
    link_distance: float = -1.0
    refused: str = ""


class AuditReply(msgspec.Struct, frozen=True, kw_only=True, tag="audit"):
    """The targets that were begun, in the order of the request; `refused` says why the weights are not here."""

    targets: tuple[AuditedTarget, ...]
    seconds: float
    cancelled: bool = False
    refused: str = ""


class ScoreRow(msgspec.Struct, frozen=True, kw_only=True):
    """A context and the choices after it, as token ids; none of them is empty."""

    context: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """Say what the model makes of choices, with the certified weights of this digest; an empty one: with the current.

    Then it writes at most `tokens` after `start`, the most likely one each time. It ends after `within_s` with what is
    done.
    """

    rows: tuple[ScoreRow, ...] = ()
    digest: bytes = b""
    within_s: float = math.inf
    start: tuple[int, ...] = ()
    tokens: int = 0


OTHER_WEIGHTS: Final = "the weights of that digest are not here"


class ScoreReply(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """For the rows that are done, each choice's log-likelihood and whether each token of it is the most likely one.

    `written` are the tokens that come after the start; `refused` says why the weights are not here.
    """

    rows: tuple[tuple[tuple[float, bool], ...], ...]
    seconds: float
    cancelled: bool = False
    refused: str = ""
    written: tuple[int, ...] = ()


class SnapshotRequest(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Write the current weights to disk.

    kind "resume": fp32 tensors as one file each, manifest, momentum, sent values, chain, digest.
    kind "export": a Hugging Face folder with the tokenizer; `dtype` is that of its numbers, `card` its README.md. With
    `source` a resume snapshot's weights are written, of a run with `max_seq_len`, and not the current ones.
    `decided` are the record's decisions on this client's results since the last train; a resume snapshot keeps them.
    """

    kind: str
    path: str
    epoch: int
    step: int
    data_index: int
    chain: bytes
    digest: bytes
    prev_commitment: bytes = bytes(32)
    dtype: str = "float32"
    card: str = ""
    source: str = ""
    max_seq_len: int = 0
    decided: tuple[SentResult, ...] = ()


class SnapshotReply(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Where the snapshot was written, and its size; `weight_root` is as in `LoadReply`."""

    path: str
    size_bytes: int
    weight_root: bytes
    seconds: float


Request: TypeAlias = (
    CheckRequest | MemoryRequest | LoadRequest | TrainRequest | MergeRequest | ApplyRequest | SnapshotRequest
    | OpenRequest | AuditRequest | ScoreRequest
)  # fmt: skip
Reply: TypeAlias = (
    CheckReply | MemoryReply | LoadReply | TrainReply | ApplyReply | SnapshotReply | OpenReply | AuditReply | ScoreReply
)
