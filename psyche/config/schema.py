"""The tables and keys of run.toml, state.toml and data.toml, as pydantic models.

Enums are externally tagged, as in the original Psyche: a plain variant is a string (`"Ephemeral"`), a variant with
content is a table with a single key (`[model.LLM.checkpoint.Hub]`). Nothing is converted silently: a number in
quotes, a float for a count or an unknown key is an error. Each description states the allowed values; error messages
quote it. Defaults come from the core's own types.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, Tag

from psyche.config.access import AccessTable
from psyche.config.table import Table
from psyche.config.values import (
    EXTERNAL,
    F32,
    U8,
    U16,
    U32,
    U64,
    Address,
    Count32,
    Description,
    LocalPath,
    Name,
    Root,
    RunId,
    Seed,
    String,
    Url,
    unit,
)
from psyche.core.state import state

_CONFIG: Final = state.Config()
_MODEL: Final = state.Model()
_METADATA: Final = state.Metadata()
_PROGRESS: Final = state.Progress()


class ConfigTable(Table):
    """`[config]`: the settings that the coordinator itself uses."""

    warmup_time: U64 = Field(
        description="seconds a member has to load the model, at least half of them; twice the slowest fetch is safe"
    )
    cooldown_time: U64 = Field(description="seconds for checkpoints after an epoch, above 0")
    max_round_train_time: U64 = Field(description="seconds after which a round's training ends, above 0")
    round_witness_time: U64 = Field(description="seconds for witnesses after training, above 0")
    min_clients: U16 = Field(description="members needed to go on with an epoch, above 0")
    init_min_clients: U16 = Field(description="members needed to start an epoch, min_clients to 256")
    verification_percent: U8 = Field(description="percent of members that verify, 0 to 99")
    witness_nodes: U16 = Field(description="witnesses of a round, 0 (everybody, up to 32) to 32")
    global_batch_size_start: U16 = Field(description="samples of a round at the start, above 0")
    global_batch_size_end: U16 = Field(description="samples of a round after the ramp, at least the start")
    global_batch_size_warmup_tokens: U64 = Field(description="tokens over which the batch grows; 0: no ramp")
    total_steps: U32 = Field(description="step at which the run ends, above 0")
    epoch_time: U64 = Field(default=_CONFIG.epoch_time, description="seconds of an epoch; 0: no limit")
    rounds_per_epoch: U32 = Field(
        default=_CONFIG.rounds_per_epoch, description="rounds with data of an epoch; 0: no limit"
    )
    waiting_for_members_extra_time: U8 = Field(
        default=_CONFIG.waiting_for_members_extra_time, description="seconds to wait for more members, above 0"
    )
    straggler_percent: U16 = Field(
        default=_CONFIG.straggler_percent, description="percent of the pace of two thirds; 0: wait for all"
    )
    overlap: bool = Field(
        default=_CONFIG.overlap,
        description="true: a round's results travel while the next one trains; false: they do not",
    )
    entropy_delay: U8 = Field(default=_CONFIG.entropy_delay, description="slots; chain only, a TCP server takes 0")
    evict_after: U8 = Field(default=_CONFIG.evict_after, description="rounds of silence after which a member is out")
    late_limit: U8 = Field(default=_CONFIG.late_limit, description="rounds of lateness after which a member is out")
    tie_breakers: U8 = Field(default=_CONFIG.tie_breakers, description="tie-breakers of a round")
    reveal_gate: bool = Field(default=_CONFIG.reveal_gate, description="false: true cannot run yet")
    tolerance_fp32_ppm: U32 = Field(
        default=_CONFIG.tolerance_fp32_ppm, description="honest noise of float32, parts per million"
    )
    tolerance_bf16_ppm: U32 = Field(
        default=_CONFIG.tolerance_bf16_ppm, description="honest noise of bfloat16, parts per million"
    )
    opened_chunks: U16 = Field(default=_CONFIG.opened_chunks, description="chunks that an audit opens")
    canary_permille: U16 = Field(default=_CONFIG.canary_permille, description="share of canaries, 0 to 1000")
    min_stake: U64 = Field(default=_CONFIG.min_stake, description="stake needed to join; 0: none")
    data_root: Root = Field(default=_CONFIG.data_root, description="hash of the training data, 64 hex digits in quotes")


class HubRepo(Table):
    """A repository of weights."""

    repo_id: String = Field(description='"owner/name", at most 64 bytes')
    revision: String | None = Field(default=None, description="revision, at most 64 bytes")


class DummyRepo(Table):
    """No weights; the name is only descriptive."""

    repo_id: String = Field(default="", description="any name, at most 64 bytes")
    revision: String | None = Field(default=None, description="revision, at most 64 bytes")


class Bucket(Table):
    """A bucket of weights."""

    bucket: String = Field(description="name of the bucket, at most 64 bytes")
    prefix: String | None = Field(default=None, description="folder in the bucket, at most 64 bytes")


class LocalFolder(Table):
    """A folder with weights."""

    path: LocalPath = Field(min_length=1, description="folder, relative to this file, at most 128 bytes")


class HubCheckpoint(Table):
    """Weights from the Hub."""

    content: HubRepo = Field(alias="Hub")


class DummyCheckpoint(Table):
    """No weights."""

    content: DummyRepo = Field(alias="Dummy")


class P2PCheckpoint(Table):
    """Weights from the other members; at the start of the run from the Hub."""

    content: HubRepo = Field(alias="P2P")


class GcsCheckpoint(Table):
    """Weights from a bucket."""

    content: Bucket = Field(alias="Gcs")


class P2PGcsCheckpoint(Table):
    """Weights from the other members; at the start of the run from a bucket."""

    content: Bucket = Field(alias="P2PGcs")


class LocalCheckpoint(Table):
    """Weights from a folder on this machine."""

    content: LocalFolder = Field(alias="Local")


Checkpoint = Annotated[
    Annotated[str, BeforeValidator(unit("Ephemeral")), Tag("Ephemeral")]
    | Annotated[DummyCheckpoint, Tag("Dummy")]
    | Annotated[HubCheckpoint, Tag("Hub")]
    | Annotated[P2PCheckpoint, Tag("P2P")]
    | Annotated[GcsCheckpoint, Tag("Gcs")]
    | Annotated[P2PGcsCheckpoint, Tag("P2PGcs")]
    | Annotated[LocalCheckpoint, Tag("Local")],
    EXTERNAL,
]


class SeededShuffle(Table):
    """Shuffled with a seed that all clients share."""

    seed: Seed = Field(alias="Seeded", description="32 numbers from 0 to 255, or 64 hex digits in quotes")


Shuffle = Annotated[
    Annotated[str, BeforeValidator(unit("DontShuffle")), Tag("DontShuffle")] | Annotated[SeededShuffle, Tag("Seeded")],
    EXTERNAL,
]
TokenBytes = Literal["TwoBytes", "FourBytes"]


class SingleUrl(Table):
    """One file."""

    url: Url = Field(alias="SingleUrl", min_length=1, description="URL, at most 192 bytes")


class NumberedFilesContent(Table):
    """Files whose names count up."""

    url_template: String = Field(description="URL with one {} for the number, at most 64 bytes")
    start_index: U32 = Field(description="first number")
    n_left_pad_zeros: U8 = Field(description="digits of the number, padded with zeros")
    num_files: U32 = Field(description="number of files, above 0")


class NumberedFiles(Table):
    """Files whose names count up."""

    content: NumberedFilesContent = Field(alias="NumberedFiles")


class GcpContent(Table):
    """Files of a public bucket."""

    bucket_name: String = Field(min_length=1, description="name of the bucket, at most 64 bytes")
    filter_directory: Url = Field(
        default=state.HttpLocation().filter_directory, description="folder in the bucket, at most 192 bytes; empty: all"
    )


class Gcp(Table):
    """Files of a public bucket."""

    content: GcpContent = Field(alias="Gcp")


HttpLocation = Annotated[
    Annotated[SingleUrl, Tag("SingleUrl")]
    | Annotated[NumberedFiles, Tag("NumberedFiles")]
    | Annotated[Gcp, Tag("Gcp")],
    EXTERNAL,
]


class HttpContent(Table):
    """Data over HTTP."""

    location: HttpLocation = Field(description="the files, as a table [model.LLM.data_location.Http.location.Gcp]")
    token_size_in_bytes: TokenBytes = Field(description='"TwoBytes" or "FourBytes"')
    shuffle: Shuffle = Field(description='"DontShuffle" or { Seeded = [32 numbers] }')


class HttpData(Table):
    """Data over HTTP."""

    content: HttpContent = Field(alias="Http")


class ServerData(Table):
    """Data from the run's data server."""

    address: Address = Field(alias="Server", description='"host:port", at most 64 bytes')


class LocalData(Table):
    """Data on every client's own machine."""

    path: Url = Field(alias="Local", min_length=1, description="folder, file or data.toml, at most 192 bytes")


class WeightedHttpData(Table):
    """Several data sets, mixed."""

    url: Url = Field(alias="WeightedHttp", min_length=1, description="URL of the weights, at most 192 bytes")


class PreprocessedData(Table):
    """Rows prepared in advance."""

    path: Url = Field(alias="Preprocessed", min_length=1, description="folder or repository, at most 192 bytes")


DataLocation = Annotated[
    Annotated[str, BeforeValidator(unit("Dummy")), Tag("Dummy")]
    | Annotated[ServerData, Tag("Server")]
    | Annotated[LocalData, Tag("Local")]
    | Annotated[HttpData, Tag("Http")]
    | Annotated[WeightedHttpData, Tag("WeightedHttp")]
    | Annotated[PreprocessedData, Tag("Preprocessed")],
    EXTERNAL,
]


class ConstantContent(Table):
    """Warm-up, then always the same."""

    base_lr: float = Field(description="learning rate after the warm-up")
    warmup_init_lr: float = Field(description="learning rate at step 0 of the warm-up")
    warmup_steps: U32 = Field(description="steps of the warm-up; 0: none")


class DecayContent(ConstantContent):
    """Warm-up, then down to `final_lr` at `total_steps`."""

    total_steps: U32 = Field(description="step at which final_lr is reached")
    final_lr: float = Field(description="learning rate at the end")


class WarmupStableDecayContent(ConstantContent):
    """Warm-up, a long plateau, then cosine, then linear."""

    stable_steps: U32 = Field(description="steps at base_lr")
    cosine_decay_steps: U32 = Field(description="steps of the cosine; 0: none")
    cosine_decay_final_lr: float = Field(description="learning rate after the cosine")
    linear_decay_steps: U32 = Field(description="steps of the linear end; 0: none")
    linear_decay_final_lr: float = Field(description="learning rate at the end")


class ConstantSchedule(Table):
    """Warm-up, then always the same."""

    content: ConstantContent = Field(alias="Constant")


class LinearSchedule(Table):
    """Warm-up, then a straight line."""

    content: DecayContent = Field(alias="Linear")


class CosineSchedule(Table):
    """Warm-up, then half a cosine."""

    content: DecayContent = Field(alias="Cosine")


class WarmupStableDecaySchedule(Table):
    """Warm-up, a long plateau, then cosine, then linear."""

    content: WarmupStableDecayContent = Field(alias="WarmupStableDecay")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag("Constant")]
    | Annotated[LinearSchedule, Tag("Linear")]
    | Annotated[CosineSchedule, Tag("Cosine")]
    | Annotated[WarmupStableDecaySchedule, Tag("WarmupStableDecay")],
    EXTERNAL,
]


class AdamWContent(Table):
    """The settings of AdamW, which trains in one process only."""

    betas: Annotated[list[F32], Field(min_length=2, max_length=2)] = Field(description="two numbers")
    weight_decay: F32 = Field(description="weight decay, 0: none")
    eps: F32 = Field(description="a small number above 0")
    clip_grad_norm: F32 | None = Field(default=None, description="largest gradient norm, above 0")


class DistroContent(Table):
    """The settings of DisTrO."""

    clip_grad_norm: F32 | None = Field(default=None, description="largest gradient norm, above 0")
    weight_decay: F32 | None = Field(default=None, description="weight decay, 0: none")
    compression_decay: F32 = Field(description="decay of the momentum, 0 to 1")
    compression_topk: U16 = Field(description="coefficients sent of each chunk, above 0")
    compression_chunk: U16 = Field(description="largest edge of a chunk, above 0")
    quantize_1bit: bool = Field(description="true: signs only; false: full values")


class AdamWOptimizer(Table):
    """The AdamW optimizer."""

    content: AdamWContent = Field(alias="AdamW")


class DistroOptimizer(Table):
    """The DisTrO optimizer."""

    content: DistroContent = Field(alias="Distro")


Optimizer = Annotated[
    Annotated[str, BeforeValidator(unit("Dummy")), Tag("Dummy")]
    | Annotated[AdamWOptimizer, Tag("AdamW")]
    | Annotated[DistroOptimizer, Tag("Distro")],
    EXTERNAL,
]


class LlmTable(Table):
    """`[model.LLM]`: the model, its data, learning-rate schedule and optimizer."""

    architecture: Literal["HfLlama", "HfDeepseek", "HfAuto", "Torchtitan"] = Field(description='"HfLlama"')
    data_type: Literal["Pretraining", "Finetuning"] = Field(description='"Pretraining" or "Finetuning"')
    max_seq_len: U32 = Field(description="tokens of a sequence, above 0")
    cold_start_warmup_steps: U32 = Field(
        default=_MODEL.cold_start_warmup_steps, description="steps of learning-rate warm-up after a pause"
    )
    checkpoint: Checkpoint = Field(description='where the weights come from, as in { Local = { path = "model" } }')
    data_location: DataLocation = Field(description='where the data comes from, as in { Server = "host:port" }')
    lr_schedule: LrSchedule = Field(description="the learning rate, as a table [model.LLM.lr_schedule.Cosine]")
    optimizer: Optimizer = Field(description="the optimizer, as a table [model.LLM.optimizer.Distro]")
    cooldown_sources: U8 = Field(
        default=_MODEL.cooldown_sources, description="sources of weights that end Cooldown early, 0 (never) to 4"
    )


class ModelTable(Table):
    """`[model]`; LLM is the only kind of model."""

    llm: LlmTable = Field(alias="LLM")


class MetadataTable(Table):
    """`[metadata]`: descriptive data of a run, for people."""

    name: Name = Field(default=_METADATA.name, description="what the run is called, at most 64 bytes")
    description: Description = Field(default=_METADATA.description, description="what it is for, at most 280 bytes")
    num_parameters: U64 = Field(default=_METADATA.num_parameters, description="parameters of the model; 0: not told")
    vocab_size: U64 = Field(default=_METADATA.vocab_size, description="tokens of the vocabulary; 0: not told")


class ProgressTable(Table):
    """`[progress]`: the progress at which a run starts, in a state.toml."""

    epoch: U16 = Field(default=_PROGRESS.epoch, description="epochs that are over, 0 to 65535")
    step: Count32 = Field(default=_PROGRESS.step, description="the step to begin with, above 0")
    epoch_start_data_index: U64 = Field(
        default=_PROGRESS.epoch_start_data_index, description="samples that are already trained"
    )


RunStateName = Literal[
    "Uninitialized", "WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Finished", "Paused"
]


class RunFile(Table):
    """A run.toml (tables config and model) or a state.toml (with run_id and more)."""

    run_id: RunId | None = Field(default=None, description="name of the run, at most 32 bytes")
    run_state: RunStateName | None = Field(
        default=None, description="has no effect, for old files: a run starts by waiting for members"
    )
    run_state_start_unix_timestamp: U64 = Field(default=0, description="has no effect, for old files")
    pending_pause: bool = Field(default=False, description="true: the run is paused when its first epoch ends")
    bootstrap: list[str] = Field(
        default_factory=list[str], description="up to four nodes, as /ip4/HOST/tcp/PORT/p2p/KEY"
    )
    config: ConfigTable
    model: ModelTable
    metadata: MetadataTable = Field(default_factory=MetadataTable)
    progress: ProgressTable = Field(default_factory=ProgressTable)
    access: AccessTable = Field(default_factory=AccessTable)


class DataFile(Table):
    """A data.toml: the data that a data server or a Local data location provides."""

    dir: str = Field(min_length=1, description="folder with .bin or .npy files, relative to this file")
    token_size: TokenBytes = Field(description='"TwoBytes" or "FourBytes"')
    seq_len: Count32 = Field(description="tokens of a sequence, above 0")
    shuffle_seed: Seed | None = Field(default=None, description="32 numbers from 0 to 255; left out: not shuffled")
