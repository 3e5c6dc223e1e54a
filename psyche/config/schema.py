"""The tables and keys of run.toml, state.toml and data.toml, as pydantic models.

Enums are externally tagged, as in the original Psyche: a plain variant is a string (`"Ephemeral"`), a variant with
content is a table with a single key (`[model.LLM.checkpoint.Hub]`). Nothing is converted silently: a number in
quotes, a float for a count or an unknown key is an error. The keys of what stands on record are those of
`psyche.core.state.settings`; others state their meaning, unit and range here.
"""

from typing import Literal

from psyche.config.access import AccessTable
from psyche.config.model_schema import LlmTable, TokenBytes
from psyche.config.table import Table, key, keys_of
from psyche.config.values import SEED_FORM, U64, Count32, RunId, Seed
from psyche.core.state import settings
from psyche.core.state.limits import BOOTSTRAP_BYTES, MAX_BOOTSTRAP


@keys_of(settings.Config)
class ConfigTable(Table):
    """`[config]`: the settings that the coordinator itself uses."""


class ModelTable(Table):
    """`[model]`; LLM is the only kind of model."""

    llm: LlmTable = key("", alias="LLM")


@keys_of(settings.Metadata)
class MetadataTable(Table):
    """`[metadata]`: descriptive data of a run, for people."""


@keys_of(settings.Progress)
class ProgressTable(Table):
    """`[progress]`: the progress at which a run starts, in a state.toml."""


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
