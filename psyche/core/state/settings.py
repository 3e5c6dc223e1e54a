"""The settings of a run on record. A key of run.toml stands here alone, with all that is said and asked of it.

From its `Key` follow its bytes (`core.encoding.tables`), the check of its range (`config_checks`), how it is read and
explained (`psyche.config`), and its row in docs/configuration.md. Rules on several keys are in `config_checks`.
"""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from psyche.core.encoding.plan import MAX_CHUNK_EDGE
from psyche.core.state.enums import (
    ANEW,
    Architecture,
    CheckpointKind,
    DataLocationKind,
    DataType,
    HttpLocationKind,
    InnerOptimizer,
    Lookahead,
    OptimizerKind,
    ScheduleKind,
    TokenSize,
)
from psyche.core.state.limits import (
    DESCRIPTION_BYTES,
    EVICT_AFTER_ROUNDS,
    LATE_LIMIT_ROUNDS,
    MAX_CLIENTS,
    MAX_COOLDOWN_SOURCES,
    MAX_INNER_STEPS,
    MAX_OUTER_RATE,
    MAX_TIME_S,
    MAX_WITNESSES,
    NAME_BYTES,
    STRAGGLER_PERCENT,
    U8_MAX,
    U16_MAX,
    U32_MAX,
    U64_MAX,
)

ZERO32: Final = bytes(32)
Width: TypeAlias = Literal["u8", "u16", "u32", "u64", "f32", "f64", "bool", "hash", "text", "enum", "f32 pair"]
MOST: Final = {"u8": U8_MAX, "u16": U16_MAX, "u32": U32_MAX, "u64": U64_MAX}  # that a number on record can be


@dataclass(frozen=True, slots=True)
class Key:
    """A key of run.toml: what it is on record, and what people are told of it.

    `least` and `most` are the range of a number; of a text `most` is its length in bytes. A value is not below that of
    the key `not_below`. `beyond` says what is wrong with a value above `most`; `allowed` is the range in words, where
    the numbers do not say it. `is_needed`: the file must set it, although the record has a default.
    """

    width: Width
    meaning: str
    unit: str = ""
    least: int = 0
    most: int | None = None
    beyond: str = "does not fit the record"
    not_below: str = ""
    allowed: str = ""
    example: object = None
    is_needed: bool = False

    @property
    def limit(self) -> int:
        """The largest number that it can be."""
        return MOST[self.width] if self.most is None else self.most

    @property
    def stand_in(self) -> int:
        """A number that breaks no rule, whatever the other keys are."""
        return self.limit if self.not_below else self.least


def key(width: Width, meaning: str, *, default: Any = 0, is_needed: bool = False, **more: Any) -> Any:
    """Declare a field of a record as a key of run.toml; `more` are fields of `Key`."""
    return field(default=default, metadata={"key": Key(width, meaning, is_needed=is_needed, **more)})


@cache
def get_keys(record: type) -> dict[str, Key]:
    """The keys of a dataclass of settings, by name, in order."""
    return {one.name: one.metadata["key"] for one in fields(record) if "key" in one.metadata}


@dataclass(slots=True)
class Checkpoint:
    """A source of weights.

    `name` is the repo id (Dummy, Hub, P2P), the bucket (Gcs, P2PGcs) or the path (Local). `revision` is the
    revision (Dummy, Hub, P2P) or the prefix (Gcs, P2PGcs); None: none is given.
    """

    kind: CheckpointKind = CheckpointKind.EPHEMERAL
    name: str = ""
    revision: str | None = None


@dataclass(slots=True)
class HttpLocation:
    """The location of HTTP data; `kind` determines which fields are used.

    `url` is the single URL, a template with one `{}`, or the name of the bucket.
    """

    kind: HttpLocationKind = HttpLocationKind.SINGLE_URL
    url: str = ""
    filter_directory: str = ""
    start_index: int = 0
    n_left_pad_zeros: int = 0
    num_files: int = 0


@dataclass(slots=True)
class DataLocation:
    """The location of the training data.

    `address` is the server's "host:port", a local path or folder, or the URL of the weights of several sources.
    """

    kind: DataLocationKind = DataLocationKind.DUMMY
    address: str = ""
    http: HttpLocation = field(default_factory=HttpLocation)
    token_size: TokenSize = TokenSize.TWO_BYTES
    shuffle_seed: bytes | None = None  # 32 bytes; None: not shuffled


@dataclass(slots=True)
class LrSchedule:
    """A learning-rate schedule, evaluated by `core.committee.schedule`. Steps are counts, rates float64."""

    kind: ScheduleKind = ScheduleKind.CONSTANT
    base_lr: float = key("f64", "learning rate after the warm-up", default=0.0, example=4e-4)
    warmup_init_lr: float = key("f64", "learning rate with which the warm-up begins", default=0.0, example=0.0)
    warmup_steps: int = key("u32", "length of the warm-up; 0: none", unit="steps", example=250)
    total_steps: int = key(
        "u32", "step at which final_lr is reached, as a rule config.total_steps", unit="steps",
        allowed="warmup_steps to 2^32 - 1", example=10_000,
    )  # fmt: skip
    final_lr: float = key("f64", "learning rate at the end", default=0.0, example=4e-5)
    stable_steps: int = key("u32", "length of the plateau at base_lr", unit="steps", example=8_000)
    cosine_decay_steps: int = key("u32", "length of the cosine; 0: none", unit="steps", example=0)
    cosine_decay_final_lr: float = key(
        "f64", "learning rate after the cosine; base_lr where there is none", default=0.0, allowed="0 to base_lr",
        example=4e-4,
    )  # fmt: skip
    linear_decay_steps: int = key("u32", "length of the linear end; 0: none", unit="steps", example=2_000)
    linear_decay_final_lr: float = key(
        "f64", "learning rate at the end", default=0.0, allowed="0 to cosine_decay_final_lr", example=4e-5
    )


@dataclass(slots=True)
class Optimizer:
    """An optimizer and its settings; None means not set."""

    kind: OptimizerKind = OptimizerKind.DUMMY
    clip_grad_norm: float | None = key(
        "f32", "norm to which larger gradients are cut; left out: they are not", default=None, allowed="above 0",
        example=1.0,
    )  # fmt: skip
    weight_decay: float | None = key(
        "f32", "weight decay per step, times the learning rate; left out or 0: none", default=None
    )
    compression_decay: float = key(
        "f32", "decay of the momentum per step; 0.999 for long runs, 0.95 for some hundred steps", default=0.0,
        allowed="0 to 1", example=0.999,
    )  # fmt: skip
    compression_topk: int = key(
        "u16", "coefficients that are sent of each chunk; fewer need less bandwidth", unit="coefficients", least=1,
        example=8,
    )  # fmt: skip
    compression_chunk: int = key(
        "u16", "largest edge of a chunk", unit="coefficients", least=1, most=MAX_CHUNK_EDGE, example=64
    )
    quantize_1bit: bool = key(
        "bool", "true: only signs are sent; false: full values of 32 bits", default=False, example=True
    )
    lookahead: Lookahead = key(
        "enum", ("what the look-ahead step of overlap follows: Own is what verifiers can take too, and costs 0.2 % of "
        "loss in a short run against Momentum"), default=Lookahead.MOMENTUM, example="Own",
    )  # fmt: skip
    betas: tuple[float, float] = key(
        "f32 pair", "decay of the first and of the second moment", default=(0.0, 0.0), allowed="two, each 0 to below 1",
        example=[0.9, 0.95],
    )  # fmt: skip
    eps: float = key("f32", "what is added to the denominator", default=0.0, allowed="above 0", example=1e-8)
    inner_optimizer: InnerOptimizer = key(
        "enum", ("what trains between two exchanges: Muon takes the matrices inside the layers and AdamW the rest; "
        "Anew: its state is zero at the start of each round"), default=InnerOptimizer.ADAMW, example="AdamW",
    )  # fmt: skip
    inner_steps: int = key(
        "u16", "steps of a member between two exchanges, which share its samples of the round", unit="steps", least=1,
        most=MAX_INNER_STEPS, example=8,
    )  # fmt: skip
    merge_step: int = key(
        "u16", ("inner steps after which the others' results of the round before count, with overlap; 0: only when "
        "they are applied"), unit="steps", allowed="0 to below inner_steps", example=2,
    )  # fmt: skip
    value_bits: int = key(
        "u8", "bits of each value that is sent, beside a scale for each chunk", unit="bits", least=1, most=2, example=2
    )
    error_decay: float = key(
        "f32", "decay per round of what was trained and not yet sent", default=0.0, allowed="0 to 1", example=0.95
    )
    outer_rate: float = key(
        "f32", "factor by which the mean of the members' results moves the weights", default=0.0,
        allowed=f"above 0 to {MAX_OUTER_RATE}", example=1.0,
    )  # fmt: skip

    @property
    def is_exact(self) -> bool:
        """Whether members that apply the same results have the same bits (S2)."""
        return self.quantize_1bit or self.kind is OptimizerKind.LOCAL_STEPS

    @property
    def is_replayable(self) -> bool:
        """Whether others can compute a member's round again; an inner state that goes on is its owner's alone (V2)."""
        return self.kind is OptimizerKind.DISTRO or (
            self.kind is OptimizerKind.LOCAL_STEPS and self.inner_optimizer in ANEW
        )


@dataclass(slots=True)
class Model:
    """The model, its data, learning-rate schedule and optimizer: `[model.LLM]`, in the order of their bytes."""

    cooldown_sources: int = key(
        "u8", "sources of weights that end Cooldown early; 0: never", unit="sources", most=MAX_COOLDOWN_SOURCES,
        beyond=f"is more than the {MAX_COOLDOWN_SOURCES} sources that the record keeps",
    )  # fmt: skip  # of the certified weights (P10); here because Config has no byte left
    max_seq_len: int = key(
        "u32", "length of a sequence; how far above the model's positions: rule AR7", is_needed=True,
        unit="tokens", least=1, example=512,
    )  # fmt: skip
    cold_start_warmup_steps: int = key(
        "u32", ("length of the learning rate's rise from 0 after a pause; with epoch_time at most the rounds of an "
        "epoch"), unit="steps",
    )  # fmt: skip
    architecture: Architecture = key(
        "enum", "how the original builds the model; here all build any causal language model of transformers alike",
        default=Architecture.HF_LLAMA, is_needed=True, example="HfAuto",
    )  # fmt: skip
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    data_type: DataType = key(
        "enum", "what the data is for; Finetuning needs data with labels", default=DataType.PRETRAINING, is_needed=True,
        example="Pretraining",
    )  # fmt: skip
    data_location: DataLocation = field(default_factory=DataLocation)
    lr_schedule: LrSchedule = field(default_factory=LrSchedule)
    optimizer: Optimizer = field(default_factory=Optimizer)
    extra_checkpoints: list[Checkpoint] = field(
        default_factory=lambda: [Checkpoint() for _ in range(3)]
    )  # S10: three further sources; Ephemeral marks an empty place


@dataclass(slots=True)
class Config:
    """The settings that the coordinator itself uses, in the order of their bytes; they fill their 128 bytes."""

    warmup_time: int = key(
        "u64", ("time that members have to load the weights, slow ones at least half of it: twice the slowest fetch is "
        "safe"), is_needed=True, unit="seconds", most=MAX_TIME_S, example=60,
    )  # fmt: skip
    cooldown_time: int = key(
        "u64", "length of the pause after an epoch, in which members save", is_needed=True, unit="seconds", least=1,
        most=MAX_TIME_S, example=10,
    )  # fmt: skip
    max_round_train_time: int = key(
        "u64", "time after which a round's training ends at the latest", is_needed=True, unit="seconds", least=1,
        most=MAX_TIME_S, example=60,
    )  # fmt: skip
    round_witness_time: int = key(
        "u64", "time that witnesses have to report a round after its training", is_needed=True, unit="seconds", least=1,
        most=MAX_TIME_S, example=10,
    )  # fmt: skip
    global_batch_size_warmup_tokens: int = key(
        "u64", "length of the ramp from start to end; 0: no ramp", is_needed=True, unit="tokens", example=0
    )
    epoch_time: int = key(
        "u64", ("time after which an epoch ends, above warmup_time and max_round_train_time; 0: no limit, if "
        "rounds_per_epoch sets one"), unit="seconds", most=MAX_TIME_S,
    )  # fmt: skip
    total_steps: int = key(
        "u32", "step at which the run ends; the steps before it are trained, beginning with 1", is_needed=True,
        unit="steps", least=1, example=1001,
    )  # fmt: skip
    init_min_clients: int = key(
        "u16", "members with which an epoch starts", is_needed=True, unit="members", not_below="min_clients", least=1,
        most=MAX_CLIENTS, beyond=f"is above {MAX_CLIENTS}, the most that can join", example=2,
    )  # fmt: skip
    min_clients: int = key(
        "u16", "members with which an epoch still goes on", is_needed=True, unit="members", least=1, most=MAX_CLIENTS,
        beyond=f"is above {MAX_CLIENTS}, the most that can join", allowed="1 to init_min_clients", example=2,
    )  # fmt: skip
    witness_nodes: int = key(
        "u16", f"witnesses of a round; 0: everybody, up to {MAX_WITNESSES}", is_needed=True, unit="members",
        most=MAX_WITNESSES, beyond=f"is above {MAX_WITNESSES}, the records of a round", example=0,
    )  # fmt: skip
    global_batch_size_start: int = key(
        "u16", "batch of a round, of all members together, at the start", is_needed=True, unit="samples", least=1,
        example=32,
    )  # fmt: skip
    global_batch_size_end: int = key(
        "u16", "batch of a round after the ramp", is_needed=True, unit="samples", not_below="global_batch_size_start",
        least=1, example=32,
    )  # fmt: skip
    verification_percent: int = key(
        "u8", "share of members that recompute the work of others instead of training", is_needed=True,
        unit="percent", most=99, beyond="leaves nobody who trains", example=0,
    )  # fmt: skip
    waiting_for_members_extra_time: int = key(
        "u8", "time that an epoch waits for more members once it could start", default=10, unit="seconds", least=1
    )
    rounds_per_epoch: int = key(
        "u32", "rounds with data of an epoch; 0: no limit, if epoch_time sets one", unit="rounds", example=100
    )
    straggler_percent: int = key(
        "u16", ("how long a round waits for the slowest: percent of the time that two thirds of the members took; 0: "
        "for all"), default=STRAGGLER_PERCENT, unit="percent",
    )  # fmt: skip
    overlap: bool = key(
        "bool", "true: a round's results travel while the next one trains; false: they do not", default=True
    )
    entropy_delay: int = key("u8", "delay of the randomness on a chain; a TCP server takes 0", unit="slots")
    evict_after: int = key(
        "u8", "rounds of silence after which a member is out of the epoch", default=EVICT_AFTER_ROUNDS, unit="rounds",
        least=1,
    )  # fmt: skip
    late_limit: int = key(
        "u8", "late rounds, without a good one between them, after which a member is out of the epoch",
        default=LATE_LIMIT_ROUNDS, unit="rounds", least=1,
    )  # fmt: skip
    convict: bool = key(
        "bool", "true: juries put out whom a verifier accuses; false: findings are only shown", default=False
    )
    reveal_gate: bool = key(
        "bool", "true: results stay closed until all are announced, which cannot run yet; false: they do not",
        default=False,
    )  # fmt: skip
    tolerance_fp32_ppm: int = key(
        "u32", "largest difference between honest machines in float32", default=1_000,
        unit="parts per million",
    )  # fmt: skip
    tolerance_bf16_ppm: int = key(
        "u32", "largest difference between honest machines in bfloat16", default=20_000,
        unit="parts per million",
    )  # fmt: skip
    opened_chunks: int = key(
        "u16",
        "chunks of its momenta that a member opens; 0: none, the signs alone are judged",
        default=256,
        unit="chunks",
    )
    canary_permille: int = key(
        "u16", "share of canaries among the samples; above 0 cannot run yet", unit="permille", most=1_000,
        beyond="is more than all",
    )  # fmt: skip
    min_stake: int = key("u64", "stake that members need; above 0 cannot run yet", unit="tokens of the chain")
    data_root: bytes = key(
        "hash", "blob id of the data manifest; by itself that of data.manifest beside the file", default=ZERO32
    )  # zero: not stated


@dataclass(slots=True)
class Metadata:
    """Descriptive data of a run, for people."""

    name: str = key("text", "what the run is called", default="", most=NAME_BYTES)
    description: str = key("text", "what it is for", default="", most=DESCRIPTION_BYTES)
    num_parameters: int = key("u64", "size of the model; 0: not told", unit="parameters")
    vocab_size: int = key("u64", "size of the vocabulary; 0: not told", unit="tokens")


@dataclass(slots=True)
class Progress:
    """The progress of the run: the epoch's number (from 0), the step (from 1), and the epoch's first sample."""

    epoch: int = key("u16", "epochs that are over", unit="epochs")
    step: int = key("u32", "the step to begin with", default=1, unit="steps", least=1)
    epoch_start_data_index: int = key(
        "u64", "samples that are already trained; with those to come below 2^63", unit="samples"
    )
