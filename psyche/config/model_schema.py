"""The tables and keys below `[model.LLM]`: checkpoint, data, learning-rate schedule, optimizer."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, Tag

from psyche.config.table import Table, format_limit, format_range, key
from psyche.config.values import (
    EXTERNAL,
    F32,
    SEED_FORM,
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
from psyche.core.encoding.plan import MAX_CHUNK_EDGE
from psyche.core.state import state
from psyche.core.state.limits import (
    MAX_COOLDOWN_SOURCES,
    U16_MAX,
    U32_MAX,
)

_MODEL: Final = state.Model()
_COUNT: Final = format_range(1, U32_MAX)
_RATE: Final = "at least 0"
_CLIP: Final = "norm to which larger gradients are cut; left out: they are not"


class HubRepo(Table):
    """A repository of weights."""

    repo_id: String = key('"owner/name"', example="owner/name")
    revision: String | None = key("its revision", default=None)


class DummyRepo(Table):
    """No weights; the name is only descriptive."""

    repo_id: String = key("any name", default="")
    revision: String | None = key("any revision", default=None)


class Bucket(Table):
    """A bucket of weights."""

    bucket: String = key("name of the bucket", example="my-bucket")
    prefix: String | None = key("folder in the bucket", default=None)


class LocalFolder(Table):
    """A folder with weights."""

    path: LocalPath = key(
        "the folder; relative to this file, on clients to their --local-root", min_length=1, example="model"
    )


class HubCheckpoint(Table):
    """Weights from the Hub."""

    content: HubRepo = key("", alias="Hub")


class DummyCheckpoint(Table):
    """No weights."""

    content: DummyRepo = key("", alias="Dummy")


class P2PCheckpoint(Table):
    """Weights from the other members; at the start of the run from the Hub."""

    content: HubRepo = key("", alias="P2P")


class GcsCheckpoint(Table):
    """Weights from a bucket."""

    content: Bucket = key("", alias="Gcs")


class P2PGcsCheckpoint(Table):
    """Weights from the other members; at the start of the run from a bucket."""

    content: Bucket = key("", alias="P2PGcs")


class LocalCheckpoint(Table):
    """Weights from a folder on this machine."""

    content: LocalFolder = key("", alias="Local")


Checkpoint = Annotated[
    Annotated[
        str, BeforeValidator(unit("Ephemeral")), Tag("Ephemeral"), Field(description="Weights that are kept nowhere.")
    ]
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

    seed: Seed = key("the seed that all clients share", alias="Seeded", allowed=SEED_FORM, example="07" * 32)


Shuffle = Annotated[
    Annotated[
        str, BeforeValidator(unit("DontShuffle")), Tag("DontShuffle"), Field(description="In the order of the files.")
    ]
    | Annotated[SeededShuffle, Tag("Seeded")],
    EXTERNAL,
]
TokenBytes = Literal["TwoBytes", "FourBytes"]


class SingleUrl(Table):
    """One file."""

    url: Url = key("its URL", alias="SingleUrl", min_length=1, example="https://example.org/tokens.bin")


class NumberedFilesContent(Table):
    """Files whose names count up."""

    url_template: String = key("URL with one {} for the number", example="https://example.org/{}.bin")
    start_index: U32 = key("number of the first file", example=1)
    n_left_pad_zeros: U8 = key("length of the number, padded with zeros", unit="digits", example=3)
    num_files: U32 = key("how many files there are", unit="files", allowed=_COUNT, example=9)


class NumberedFiles(Table):
    """Files whose names count up."""

    content: NumberedFilesContent = key("", alias="NumberedFiles")


class GcpContent(Table):
    """Files of a public bucket."""

    bucket_name: String = key("name of the bucket", min_length=1, example="my-bucket")
    filter_directory: Url = key("folder in the bucket; empty: all", default=state.HttpLocation().filter_directory)


class Gcp(Table):
    """Files of a public bucket."""

    content: GcpContent = key("", alias="Gcp")


HttpLocation = Annotated[
    Annotated[SingleUrl, Tag("SingleUrl")]
    | Annotated[NumberedFiles, Tag("NumberedFiles")]
    | Annotated[Gcp, Tag("Gcp")],
    EXTERNAL,
]


class HttpContent(Table):
    """Data over HTTP."""

    location: HttpLocation = key(
        "the files, as a table [model.LLM.data_location.Http.location.Gcp]",
        example={"SingleUrl": "https://example.org/tokens.bin"},
    )
    token_size_in_bytes: TokenBytes = key("size of a token id", example="TwoBytes")
    shuffle: Shuffle = key('the order, "DontShuffle" or { Seeded = [32 numbers] }', example="DontShuffle")


class HttpData(Table):
    """Data over HTTP."""

    content: HttpContent = key("", alias="Http")


class ServerData(Table):
    """Data from the run's data server."""

    address: Address = key('"host:port" of the server, as clients reach it', alias="Server", example="192.0.2.7:19401")


class LocalData(Table):
    """Data on every client's own machine."""

    path: Url = key(
        "folder, file or data.toml; relative to the client's --local-root", alias="Local", min_length=1, example="data"
    )


class WeightedHttpData(Table):
    """Several data sets, mixed."""

    url: Url = key("URL of the weights", alias="WeightedHttp", min_length=1, example="https://example.org/mix.json")


class PreprocessedData(Table):
    """Rows prepared in advance."""

    path: Url = key("folder or repository", alias="Preprocessed", min_length=1, example="owner/rows")


DataLocation = Annotated[
    Annotated[str, BeforeValidator(unit("Dummy")), Tag("Dummy"), Field(description="Made-up rows, for tests.")]
    | Annotated[ServerData, Tag("Server")]
    | Annotated[LocalData, Tag("Local")]
    | Annotated[HttpData, Tag("Http")]
    | Annotated[WeightedHttpData, Tag("WeightedHttp")]
    | Annotated[PreprocessedData, Tag("Preprocessed")],
    EXTERNAL,
]


class ConstantContent(Table):
    """Warm-up, then always the same."""

    base_lr: float = key("learning rate after the warm-up", allowed=_RATE, example=4e-4)
    warmup_init_lr: float = key("learning rate with which the warm-up begins", allowed=_RATE, example=0.0)
    warmup_steps: U32 = key("length of the warm-up; 0: none", unit="steps", example=250)


class DecayContent(ConstantContent):
    """Warm-up, then down to `final_lr` at `total_steps`."""

    total_steps: U32 = key(
        "step at which final_lr is reached, as a rule config.total_steps", unit="steps",
        allowed=f"warmup_steps to {format_limit(U32_MAX)}", example=10_000,
    )  # fmt: skip
    final_lr: float = key("learning rate at the end", allowed=_RATE, example=4e-5)


class WarmupStableDecayContent(ConstantContent):
    """Warm-up, a long plateau, then cosine, then linear."""

    stable_steps: U32 = key("length of the plateau at base_lr", unit="steps", example=8_000)
    cosine_decay_steps: U32 = key("length of the cosine; 0: none", unit="steps", example=0)
    cosine_decay_final_lr: float = key(
        "learning rate after the cosine; base_lr where there is none", allowed="0 to base_lr", example=4e-4
    )
    linear_decay_steps: U32 = key("length of the linear end; 0: none", unit="steps", example=2_000)
    linear_decay_final_lr: float = key("learning rate at the end", allowed="0 to cosine_decay_final_lr", example=4e-5)


class ConstantSchedule(Table):
    """Warm-up, then always the same."""

    content: ConstantContent = key("", alias="Constant")


class LinearSchedule(Table):
    """Warm-up, then a straight line."""

    content: DecayContent = key("", alias="Linear")


class CosineSchedule(Table):
    """Warm-up, then half a cosine."""

    content: DecayContent = key("", alias="Cosine")


class WarmupStableDecaySchedule(Table):
    """Warm-up, a long plateau, then cosine, then linear."""

    content: WarmupStableDecayContent = key("", alias="WarmupStableDecay")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag("Constant")]
    | Annotated[LinearSchedule, Tag("Linear")]
    | Annotated[CosineSchedule, Tag("Cosine")]
    | Annotated[WarmupStableDecaySchedule, Tag("WarmupStableDecay")],
    EXTERNAL,
]


class AdamWContent(Table):
    """The settings of AdamW, which trains in one process only."""

    betas: list[F32] = key(
        "decay of the first and of the second moment", min_length=2, max_length=2, allowed="two, each 0 to below 1",
        example=[0.9, 0.95],
    )  # fmt: skip
    weight_decay: F32 = key("weight decay per step, times the learning rate; 0: none", allowed=_RATE, example=0.1)
    eps: F32 = key("what is added to the denominator", allowed="above 0", example=1e-8)
    clip_grad_norm: F32 | None = key(_CLIP, default=None, allowed="above 0", example=1.0)


class DistroContent(Table):
    """The settings of DisTrO."""

    clip_grad_norm: F32 | None = key(_CLIP, default=None, allowed="above 0", example=1.0)
    weight_decay: F32 | None = key(
        "weight decay per step, times the learning rate; left out or 0: none", default=None, allowed=_RATE
    )
    compression_decay: F32 = key(
        "decay of the momentum per step; 0.999 for long runs, 0.95 for some hundred steps", allowed="0 to 1",
        example=0.999,
    )  # fmt: skip
    compression_topk: U16 = key(
        "coefficients that are sent of each chunk; fewer need less bandwidth", unit="coefficients",
        allowed=format_range(1, U16_MAX), example=8,
    )  # fmt: skip
    compression_chunk: U16 = key(
        "largest edge of a chunk of the transform", unit="coefficients", allowed=format_range(1, MAX_CHUNK_EDGE),
        example=64,
    )  # fmt: skip
    quantize_1bit: bool = key("true: only signs are sent; false: full values of 32 bits", example=True)


class AdamWOptimizer(Table):
    """The AdamW optimizer."""

    content: AdamWContent = key("", alias="AdamW")


class DistroOptimizer(Table):
    """The DisTrO optimizer."""

    content: DistroContent = key("", alias="Distro")


Optimizer = Annotated[
    Annotated[str, BeforeValidator(unit("Dummy")), Tag("Dummy"), Field(description="No training, for tests.")]
    | Annotated[AdamWOptimizer, Tag("AdamW")]
    | Annotated[DistroOptimizer, Tag("Distro")],
    EXTERNAL,
]


class LlmTable(Table):
    """`[model.LLM]`: the model, its data, learning-rate schedule and optimizer."""

    architecture: Literal["HfLlama", "HfDeepseek", "HfAuto", "Torchtitan"] = key(
        "kind of the model; only HfLlama can run", example="HfLlama"
    )
    data_type: Literal["Pretraining", "Finetuning"] = key(
        "what the data is for; has no effect yet", example="Pretraining"
    )
    max_seq_len: U32 = key(
        "length of a sequence, at most the model's max_position_embeddings", unit="tokens", allowed=_COUNT, example=512
    )
    cold_start_warmup_steps: U32 = key(
        "length of the learning rate's rise from 0 after a pause; with epoch_time at most the rounds of an epoch",
        unit="steps", default=_MODEL.cold_start_warmup_steps,
    )  # fmt: skip
    checkpoint: Checkpoint = key('where the weights come from, as in { Local = { path = "model" } }')
    data_location: DataLocation = key('where the data comes from, as in { Server = "host:port" }')
    lr_schedule: LrSchedule = key("the learning rate, as a table [model.LLM.lr_schedule.Cosine]")
    optimizer: Optimizer = key("the optimizer, as a table [model.LLM.optimizer.Distro]")
    cooldown_sources: U8 = key(
        "sources of weights that end Cooldown early; 0: never", unit="sources",
        allowed=format_range(0, MAX_COOLDOWN_SOURCES), default=_MODEL.cooldown_sources,
    )  # fmt: skip
