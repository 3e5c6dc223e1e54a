"""The messages between a client and its trainer (length-prefixed msgpack between processes).

Payloads and token ids are bytes; tensors are exchanged only as files.
"""

from typing import TypeAlias

import msgspec

from psyche.core.state.state import Model


class SentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The record's decision on an earlier result of this client: applied or not."""

    height: int
    applied: bool


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
    largest that fits.
    """

    path: str
    is_snapshot: bool
    model: Model
    micro_batch_size: int
    keep_momentum: bool = True
    activation_checkpointing: bool = False
    batch_size: int = 0


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
    with this momentum, `notices` what the trainer does otherwise than config.json says (AR5, AR7).
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


class TrainRequest(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """Train one batch with the current weights.

    `tokens` are u32 little-endian ids, or with `has_labels` what `wire.data` says: `samples` rows of `sequence_length`.
    `lr` is that of this round, `lookahead_lr` that of the previous round (0: no look-ahead). `decided` are the record's
    decisions on this client's results since the last train. `in_flight` is true with overlap: the client's last result
    is taken out of the momentum whether it is applied or not. `with_statistics` asks for those of each tensor.
    Of local steps `next_lr` is the rate of the round after this one, and `own` this client's result in flight, if any.
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


class MergeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="merge"):
    """Go on with a round of local steps that waits for the results in flight: `held` are those that are here (LS5)."""

    held: tuple[Contribution, ...]


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
)
Reply: TypeAlias = CheckReply | MemoryReply | LoadReply | TrainReply | ApplyReply | SnapshotReply
