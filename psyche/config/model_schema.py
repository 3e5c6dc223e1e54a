"""The tables and keys below `[model.LLM]`: checkpoint, data, learning-rate schedule, optimizer.

Fields have the names that they have in the core; their keys, where these are others, are aliases.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import partial, reduce
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, create_model
from pydantic_core import PydanticCustomError

from psyche.config.table import Table, key, keys_of
from psyche.config.values import (
    F32,
    SEED_FORM,
    U8,
    U32,
    Address,
    LocalPath,
    Seed,
    String,
    Url,
    get_variant_name,
    pick_variant,
)
from psyche.core.encoding.tables import LR_SCHEDULE, OPTIMIZER
from psyche.core.state import settings
from psyche.core.state.enums import (
    CheckpointKind,
    DataLocationKind,
    HttpLocationKind,
    Lookahead,
    OptimizerKind,
    ScheduleKind,
    TokenSize,
)

# A variant: what one without content means; or what one with content means, and the content; or the table with its key.
Variant = str | tuple[str, type[Table]] | type[Table]


def get_tag(value: object) -> str | None:
    """The variant named by an externally tagged value; None if it does not name exactly one."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and len(keys := list(cast("dict[object, object]", value))) == 1:
        return str(keys[0])
    return None


def make_union(variants: Mapping[str, Variant], build: Callable[[Any], object]) -> Any:
    """The type of a key that is one of these variants, by name; `build` makes the core's value of what was read."""
    parts: list[Any] = [_make_variant(name, variant) for name, variant in variants.items()]
    return Annotated[reduce(lambda one, other: one | other, parts), Discriminator(get_tag), AfterValidator(build)]


def _make_variant(name: str, variant: Variant) -> Any:
    if isinstance(variant, str):
        return Annotated[str, BeforeValidator(partial(_check_unit, name)), Tag(name), Field(description=variant)]
    if isinstance(variant, tuple):
        meaning, content = variant
        made = create_model(name, __base__=Table, __doc__=meaning, content=(content, key("", alias=name)))
        return Annotated[made, Tag(name)]
    return Annotated[variant, Tag(name)]


def _check_unit(name: str, value: object) -> object:
    if value != name:
        raise PydanticCustomError("unit_variant", "takes no table: write it as a plain string")
    return value


def choose(record: Callable[..., object], variants: Mapping[IntEnum, Variant]) -> Any:
    """The type of a key whose variants are the kinds of a record of the core."""
    kinds = {get_variant_name(kind): kind for kind in variants}

    def build(value: str | Table) -> object:
        if isinstance(value, str):
            return record(kinds[value])
        ((name, field),) = type(value).model_fields.items()
        inner = getattr(value, name)
        return record(kinds[str(field.alias)], **(dict(inner) if isinstance(inner, Table) else {name: inner}))

    return make_union({get_variant_name(kind): variant for kind, variant in variants.items()}, build)


# --- checkpoint -------------------------------------------------------------------------------------------


class HubRepo(Table):
    """A repository of weights."""

    name: String = key('"owner/name"', alias="repo_id", example="owner/name")
    revision: String | None = key("its revision", default=None)


class DummyRepo(Table):
    """No weights; the name is only descriptive."""

    name: String = key("any name", alias="repo_id", default="")
    revision: String | None = key("any revision", default=None)


class Bucket(Table):
    """A bucket of weights."""

    name: String = key("name of the bucket", alias="bucket", example="my-bucket")
    revision: String | None = key("folder in the bucket", alias="prefix", default=None)


class LocalFolder(Table):
    """A folder with weights."""

    name: LocalPath = key(
        "the folder; relative to this file, on clients to their --local-root", alias="path", min_length=1,
        example="model",
    )  # fmt: skip


CHECKPOINT = choose(
    settings.Checkpoint,
    {
        CheckpointKind.EPHEMERAL: "Weights that are kept nowhere.",
        CheckpointKind.DUMMY: ("No weights.", DummyRepo),
        CheckpointKind.HUB: ("Weights from the Hub.", HubRepo),
        CheckpointKind.P2P: ("Weights from the other members; at the start of the run from the Hub.", HubRepo),
        CheckpointKind.GCS: ("Weights from a bucket.", Bucket),
        CheckpointKind.P2P_GCS: ("Weights from the other members; at the start of the run from a bucket.", Bucket),
        CheckpointKind.LOCAL: ("Weights from a folder on this machine.", LocalFolder),
    },
)


# --- data -------------------------------------------------------------------------------------------------

TokenBytes = Literal["TwoBytes", "FourBytes"]


class SeededShuffle(Table):
    """Shuffled with a seed that all clients share."""

    seed: Seed = key("the seed that all clients share", alias="Seeded", allowed=SEED_FORM, example="07" * 32)


SHUFFLE = make_union(
    {"DontShuffle": "In the order of the files.", "Seeded": SeededShuffle}, lambda value: getattr(value, "seed", None)
)


class SingleUrl(Table):
    """One file."""

    url: Url = key("its URL", alias="SingleUrl", min_length=1, example="https://example.org/tokens.bin")


class NumberedFiles(Table):
    """Files whose names count up."""

    url: String = key("URL with one {} for the number", alias="url_template", example="https://example.org/{}.bin")
    start_index: U32 = key("number of the first file", example=1)
    n_left_pad_zeros: U8 = key("length of the number, padded with zeros", unit="digits", example=3)
    num_files: U32 = key("how many files there are", unit="files", allowed="1 to 2^32 - 1", example=9)


class Gcp(Table):
    """Files of a public bucket."""

    url: String = key("name of the bucket", alias="bucket_name", min_length=1, example="my-bucket")
    filter_directory: Url = key("folder in the bucket; empty: all", default="")


HTTP_LOCATION = choose(
    settings.HttpLocation,
    {
        HttpLocationKind.SINGLE_URL: SingleUrl,
        HttpLocationKind.NUMBERED_FILES: ("Files whose names count up.", NumberedFiles),
        HttpLocationKind.GCP: ("Files of a public bucket.", Gcp),
    },
)


@keys_of(
    settings.DataLocation,
    http=(HTTP_LOCATION, key("the files, as a table [model.LLM.data_location.Http.location.Gcp]", alias="location",
                             example={"SingleUrl": "https://example.org/tokens.bin"})),
    token_size=(pick_variant(TokenSize), key("size of a token id", alias="token_size_in_bytes", example="TwoBytes")),
    shuffle_seed=(SHUFFLE, key('the order, "DontShuffle" or { Seeded = [32 numbers] }', alias="shuffle",
                               example="DontShuffle")),
)  # fmt: skip
class HttpContent(Table):
    """Data over HTTP."""


class ServerData(Table):
    """Data from the run's data server."""

    address: Address = key('"host:port" of the server, as clients reach it', alias="Server", example="192.0.2.7:19401")


class LocalData(Table):
    """Data on every client's own machine."""

    address: Url = key(
        "folder, file or data.toml; relative to the client's --local-root", alias="Local", min_length=1, example="data"
    )


class WeightedHttpData(Table):
    """Several data sets over HTTP, mixed."""

    address: Url = key(
        "URL of the mix, a JSON of data sets and weights; #sha256= and its hash pin it", alias="WeightedHttp",
        min_length=1, example="https://example.org/mix.json",
    )  # fmt: skip


class PreprocessedData(Table):
    """Rows prepared in advance, as Parquet."""

    address: Url = key(
        "folder below the client's --local-root or else a data set of the Hub, with @ and a commit",
        alias="Preprocessed", min_length=1, example="owner/rows@3f1c9a0f7c52e8d1b6a4c07d95e2f8b3a1d60c47",
    )  # fmt: skip


DATA_LOCATION = choose(
    settings.DataLocation,
    {
        DataLocationKind.DUMMY: "Made-up rows, for tests.",
        DataLocationKind.SERVER: ServerData,
        DataLocationKind.LOCAL: LocalData,
        DataLocationKind.HTTP: ("Data over HTTP.", HttpContent),
        DataLocationKind.WEIGHTED_HTTP: WeightedHttpData,
        DataLocationKind.PREPROCESSED: PreprocessedData,
    },
)


# --- learning rate and optimizer: a kind has the keys that stand on record of it ---------------------------


@keys_of(settings.LrSchedule, LR_SCHEDULE.variants[ScheduleKind.CONSTANT].places)
class ConstantContent(Table):
    """Warm-up, then always the same."""


@keys_of(settings.LrSchedule, LR_SCHEDULE.variants[ScheduleKind.COSINE].places)
class DecayContent(Table):
    """Warm-up, then down to `final_lr` at `total_steps`."""


@keys_of(settings.LrSchedule, LR_SCHEDULE.variants[ScheduleKind.WARMUP_STABLE_DECAY].places)
class StableContent(Table):
    """Warm-up, a long plateau, then cosine, then linear."""


SCHEDULE = choose(
    settings.LrSchedule,
    {
        ScheduleKind.CONSTANT: ("Warm-up, then always the same.", ConstantContent),
        ScheduleKind.LINEAR: ("Warm-up, then a straight line.", DecayContent),
        ScheduleKind.COSINE: ("Warm-up, then half a cosine.", DecayContent),
        ScheduleKind.WARMUP_STABLE_DECAY: ("Warm-up, a long plateau, then cosine, then linear.", StableContent),
    },
)


@keys_of(
    settings.Optimizer, OPTIMIZER.variants[OptimizerKind.ADAMW].places,
    weight_decay=(F32, key("weight decay per step, times the learning rate; 0: none", allowed="at least 0",
                           example=0.1)),
)  # fmt: skip
class AdamWContent(Table):
    """The settings of AdamW, which trains in one process only."""


@keys_of(
    settings.Optimizer, OPTIMIZER.variants[OptimizerKind.DISTRO].places,
    lookahead=(pick_variant(Lookahead), key(
        settings.get_keys(settings.Optimizer)["lookahead"].meaning, default="Momentum", validate_default=True,
        example="Own")),
)  # fmt: skip
class DistroContent(Table):
    """The settings of DisTrO."""


@keys_of(settings.Optimizer, OPTIMIZER.variants[OptimizerKind.LOCAL_STEPS].places)
class LocalStepsContent(Table):
    """The settings of local steps: members train several steps between two exchanges."""


CHOSEN_OPTIMIZER = choose(
    settings.Optimizer,
    {
        OptimizerKind.DUMMY: "No training, for tests.",
        OptimizerKind.ADAMW: ("The AdamW optimizer.", AdamWContent),
        OptimizerKind.DISTRO: ("The DisTrO optimizer.", DistroContent),
        OptimizerKind.LOCAL_STEPS: ("Several steps of each member between two exchanges.", LocalStepsContent),
    },
)


@keys_of(
    settings.Model,
    checkpoint=(CHECKPOINT, key('where the weights come from, as in { Local = { path = "model" } }')),
    data_location=(DATA_LOCATION, key('where the data comes from, as in { Server = "host:port" }')),
    lr_schedule=(SCHEDULE, key("the learning rate, as a table [model.LLM.lr_schedule.Cosine]")),
    optimizer=(CHOSEN_OPTIMIZER, key("the optimizer, as a table [model.LLM.optimizer.Distro]")),
)
class LlmTable(Table):
    """`[model.LLM]`: the model, its data, learning-rate schedule and optimizer."""
