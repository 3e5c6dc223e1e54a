"""The tables and keys of run.toml, state.toml and data.toml, as pydantic models.

Enums are externally tagged, as in the original Psyche: a plain variant is a string (`"Ephemeral"`), a variant with
content is a table with a single key (`[model.LLM.checkpoint.Hub]`). Nothing is converted silently: a number in
quotes, a float for a count or an unknown key is an error. Each description states the allowed values; error messages
quote it. Defaults come from the core's own types.
"""

from typing import Final, Literal

from pydantic import Field

from psyche.config.access import AccessTable
from psyche.config.model_schema import LlmTable, TokenBytes
from psyche.config.table import Table
from psyche.config.values import (
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

_CONFIG: Final = state.Config()
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
