"""The tables and keys below `[model.LLM]`: checkpoint, data, learning-rate schedule, optimizer."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, Tag

from psyche.config.table import Table
from psyche.config.values import (
    EXTERNAL,
    F32,
    U8,
    U16,
    U32,
    Address,
    LocalPath,
    Seed,
    String,
    Url,
    unit,
)
from psyche.core.state import state

_MODEL: Final = state.Model()


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
