"""The tables and keys of run.toml, state.toml and data.toml, as pydantic models.

Enums are externally tagged, as in the original Psyche: a plain variant is a string (`"Ephemeral"`), a variant with
content is a table with a single key (`[model.LLM.checkpoint.Hub]`). Nothing is converted silently: a number in
quotes, a float for a count or an unknown key is an error. Each key states its meaning, unit and range (`table.key`);
error messages, comments of `psyche init` and docs/configuration.md quote them. Defaults come from the core's own types.
"""

from typing import Final, Literal

from psyche.config.access import AccessTable
from psyche.config.model_schema import LlmTable, TokenBytes
from psyche.config.table import Table, format_range, key
from psyche.config.values import (
    HASH_FORM,
    SEED_FORM,
    U8,
    U16,
    U32,
    U64,
    Count32,
    Description,
    Name,
    Root,
    RunId,
    Seed,
)
from psyche.core.state import state
from psyche.core.state.limits import (
    BOOTSTRAP_BYTES,
    MAX_BOOTSTRAP,
    MAX_CLIENTS,
    MAX_TIME_S,
    MAX_WITNESSES,
    U32_MAX,
)

_CONFIG: Final = state.Config()
_METADATA: Final = state.Metadata()
_PROGRESS: Final = state.Progress()
_TIME: Final = format_range(1, MAX_TIME_S)
_TIME_OR_NONE: Final = format_range(0, MAX_TIME_S)
_COUNT: Final = format_range(1, U32_MAX)
_RATE: Final = "at least 0"
_CLIP: Final = "norm to which larger gradients are cut; left out: they are not"


class ConfigTable(Table):
    """`[config]`: the settings that the coordinator itself uses."""

    warmup_time: U64 = key(
        "time that members have to load the weights, slow ones at least half of it: twice the slowest fetch is safe",
        unit="seconds", allowed=_TIME_OR_NONE, example=60,
    )  # fmt: skip
    cooldown_time: U64 = key(
        "length of the pause after an epoch, in which members save", unit="seconds", allowed=_TIME, example=10
    )
    max_round_train_time: U64 = key(
        "time after which a round's training ends at the latest", unit="seconds", allowed=_TIME, example=60
    )
    round_witness_time: U64 = key(
        "time that witnesses have to report a round after its training", unit="seconds", allowed=_TIME, example=10
    )
    min_clients: U16 = key(
        "members with which an epoch still goes on", unit="members", allowed="1 to init_min_clients", example=2
    )
    init_min_clients: U16 = key(
        "members with which an epoch starts", unit="members", allowed=f"min_clients to {MAX_CLIENTS}", example=2
    )
    verification_percent: U8 = key(
        "share of members that verify instead of training; they verify nothing yet", unit="percent", allowed="0 to 99",
        example=0,
    )  # fmt: skip
    witness_nodes: U16 = key(
        f"witnesses of a round; 0: everybody, up to {MAX_WITNESSES}", unit="members", allowed=f"0 to {MAX_WITNESSES}",
        example=0,
    )  # fmt: skip
    global_batch_size_start: U16 = key(
        "batch of a round, of all members together, at the start", unit="samples", allowed="1 to 65,535", example=32
    )
    global_batch_size_end: U16 = key(
        "batch of a round after the ramp", unit="samples", allowed="global_batch_size_start to 65,535", example=32
    )
    global_batch_size_warmup_tokens: U64 = key(
        "length of the ramp from start to end; 0: no ramp", unit="tokens", example=0
    )
    total_steps: U32 = key(
        "step at which the run ends; the steps before it are trained, beginning with 1", unit="steps",
        allowed=_COUNT, example=1001,
    )  # fmt: skip
    epoch_time: U64 = key(
        "time after which an epoch ends, above warmup_time and max_round_train_time; 0: no limit, if rounds_per_epoch "
        "sets one", default=_CONFIG.epoch_time, unit="seconds", allowed=_TIME_OR_NONE,
    )  # fmt: skip
    rounds_per_epoch: U32 = key(
        "rounds with data of an epoch; 0: no limit, if epoch_time sets one", unit="rounds",
        default=_CONFIG.rounds_per_epoch, example=100,
    )  # fmt: skip
    waiting_for_members_extra_time: U8 = key(
        "time that an epoch waits for more members once it could start", unit="seconds", allowed="1 to 255",
        default=_CONFIG.waiting_for_members_extra_time,
    )  # fmt: skip
    straggler_percent: U16 = key(
        "how long a round waits for the slowest: percent of the time that two thirds of the members took; 0: for all",
        unit="percent", default=_CONFIG.straggler_percent,
    )  # fmt: skip
    overlap: bool = key(
        "true: a round's results travel while the next one trains; false: they do not", default=_CONFIG.overlap
    )
    entropy_delay: U8 = key(
        "delay of the randomness on a chain; a TCP server takes 0", unit="slots", default=_CONFIG.entropy_delay
    )
    evict_after: U8 = key(
        "rounds of silence after which a member is out of the epoch", unit="rounds", allowed="1 to 255",
        default=_CONFIG.evict_after,
    )  # fmt: skip
    late_limit: U8 = key(
        "late rounds, without a good one between them, after which a member is out of the epoch",
        unit="rounds", allowed="1 to 255", default=_CONFIG.late_limit,
    )  # fmt: skip
    tie_breakers: U8 = key("tie-breakers of an audit; has no effect yet", unit="members", default=_CONFIG.tie_breakers)
    reveal_gate: bool = key(
        "true: results stay closed until all are announced, which cannot run yet; false: they do not",
        default=_CONFIG.reveal_gate,
    )
    tolerance_fp32_ppm: U32 = key(
        "largest difference between honest machines in float32; has no effect yet", unit="parts per million",
        default=_CONFIG.tolerance_fp32_ppm,
    )  # fmt: skip
    tolerance_bf16_ppm: U32 = key(
        "largest difference between honest machines in bfloat16; has no effect yet", unit="parts per million",
        default=_CONFIG.tolerance_bf16_ppm,
    )  # fmt: skip
    opened_chunks: U16 = key(
        "chunks that an audit opens; has no effect yet", unit="chunks", default=_CONFIG.opened_chunks
    )
    canary_permille: U16 = key(
        "share of canaries among the samples; above 0 cannot run yet", unit="permille", allowed="0 to 1,000",
        default=_CONFIG.canary_permille,
    )  # fmt: skip
    min_stake: U64 = key(
        "stake that members need; above 0 cannot run yet", unit="tokens of the chain", default=_CONFIG.min_stake
    )
    data_root: Root = key("hash of the training data; has no effect yet", allowed=HASH_FORM, default=_CONFIG.data_root)


class ModelTable(Table):
    """`[model]`; LLM is the only kind of model."""

    llm: LlmTable = key("", alias="LLM")


class MetadataTable(Table):
    """`[metadata]`: descriptive data of a run, for people."""

    name: Name = key("what the run is called", default=_METADATA.name)
    description: Description = key("what it is for", default=_METADATA.description)
    num_parameters: U64 = key("size of the model; 0: not told", unit="parameters", default=_METADATA.num_parameters)
    vocab_size: U64 = key("size of the vocabulary; 0: not told", unit="tokens", default=_METADATA.vocab_size)


class ProgressTable(Table):
    """`[progress]`: the progress at which a run starts, in a state.toml."""

    epoch: U16 = key("epochs that are over", unit="epochs", default=_PROGRESS.epoch)
    step: Count32 = key("the step to begin with", unit="steps", default=_PROGRESS.step)
    epoch_start_data_index: U64 = key(
        "samples that are already trained; with those to come below 2^63", unit="samples",
        default=_PROGRESS.epoch_start_data_index,
    )  # fmt: skip


RunStateName = Literal[
    "Uninitialized", "WaitingForMembers", "Warmup", "RoundTrain", "RoundWitness", "Cooldown", "Finished", "Paused"
]


class RunFile(Table):
    """A run.toml (tables config and model) or a state.toml (with run_id and more)."""

    run_id: RunId | None = key(
        "name of the run, of letters, digits, dots, dashes and underscores; left out: the folder's name", default=None
    )
    run_state: RunStateName | None = key(
        "has no effect, for old files: a run starts by waiting for members", default=None
    )
    run_state_start_unix_timestamp: U64 = key("has no effect, for old files", unit="unix seconds", default=0)
    pending_pause: bool = key("true: the run is paused when its first epoch ends", default=False)
    bootstrap: list[str] = key(
        "nodes where clients find others, as /ip4/HOST/tcp/PORT/p2p/KEY", default_factory=list[str],
        allowed=f"at most {MAX_BOOTSTRAP}, each at most {BOOTSTRAP_BYTES} bytes",
    )  # fmt: skip
    config: ConfigTable
    model: ModelTable
    metadata: MetadataTable = key("", default_factory=MetadataTable)
    progress: ProgressTable = key("", default_factory=ProgressTable)
    access: AccessTable = key("", default_factory=AccessTable)


class DataFile(Table):
    """A data.toml: the data that a data server or a Local data location provides."""

    dir: str = key(
        "folder with .bin, .ds or .npy files, relative to this file",
        min_length=1,
        pattern=r"^[^\x00]*$",
        example="data",
    )
    token_size: TokenBytes = key("size of a token id", example="TwoBytes")
    seq_len: Count32 = key("length of a sequence; equal to max_seq_len of the run", unit="tokens", example=512)
    shuffle_seed: Seed | None = key("seed of the order; left out: not shuffled", default=None, allowed=SEED_FORM)
