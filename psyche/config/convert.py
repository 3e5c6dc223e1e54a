"""Conversion of validated tables to the core's own types."""

from typing import Final

from psyche.config import model_schema, schema
from psyche.config.table import Table
from psyche.config.values import get_variant_name
from psyche.core.state import state
from psyche.core.state.state import (
    CheckpointKind,
    DataLocationKind,
    HttpLocationKind,
    OptimizerKind,
    ScheduleKind,
    TokenSize,
)

_ARCHITECTURES: Final = {get_variant_name(member): member for member in state.Architecture}
_DATA_TYPES: Final = {get_variant_name(member): member for member in state.DataType}
_TOKEN_SIZES: Final = {get_variant_name(member): member for member in TokenSize}
_CHECKPOINT_KINDS: Final[dict[type[Table], CheckpointKind]] = {
    model_schema.DummyCheckpoint: CheckpointKind.DUMMY,
    model_schema.HubCheckpoint: CheckpointKind.HUB,
    model_schema.P2PCheckpoint: CheckpointKind.P2P,
    model_schema.GcsCheckpoint: CheckpointKind.GCS,
    model_schema.P2PGcsCheckpoint: CheckpointKind.P2P_GCS,
    model_schema.LocalCheckpoint: CheckpointKind.LOCAL,
}
TOKEN_SIZE_BYTES: Final = {TokenSize.TWO_BYTES: 2, TokenSize.FOUR_BYTES: 4}


def get_config(table: schema.ConfigTable) -> state.Config:
    """Convert `[config]`; both types have the same field names."""
    return state.Config(**table.model_dump())


def get_metadata(table: schema.MetadataTable) -> state.Metadata:
    """Convert `[metadata]`."""
    return state.Metadata(**table.model_dump())


def get_progress(table: schema.ProgressTable) -> state.Progress:
    """Convert `[progress]`."""
    return state.Progress(**table.model_dump())


def get_model(table: model_schema.LlmTable) -> state.Model:
    """Convert `[model.LLM]`."""
    return state.Model(
        architecture=_ARCHITECTURES[table.architecture],
        data_type=_DATA_TYPES[table.data_type],
        max_seq_len=table.max_seq_len,
        cold_start_warmup_steps=table.cold_start_warmup_steps,
        checkpoint=_get_checkpoint(table.checkpoint),
        data_location=_get_data_location(table.data_location),
        lr_schedule=_get_schedule(table.lr_schedule),
        optimizer=_get_optimizer(table.optimizer),
        cooldown_sources=table.cooldown_sources,
    )


def get_token_size_bytes(name: str) -> int:
    """The bytes of one token id, 2 or 4, for "TwoBytes" or "FourBytes"."""
    return TOKEN_SIZE_BYTES[_TOKEN_SIZES[name]]


def _get_checkpoint(checkpoint: model_schema.Checkpoint) -> state.Checkpoint:
    if isinstance(checkpoint, str):
        return state.Checkpoint(CheckpointKind.EPHEMERAL)
    kind = _CHECKPOINT_KINDS[type(checkpoint)]
    match checkpoint.content:
        case model_schema.HubRepo(repo_id=name, revision=revision):
            return state.Checkpoint(kind, name, revision)
        case model_schema.DummyRepo(repo_id=name, revision=revision):
            return state.Checkpoint(kind, name, revision)
        case model_schema.Bucket(bucket=name, prefix=prefix):
            return state.Checkpoint(kind, name, prefix)
        case model_schema.LocalFolder(path=path):
            return state.Checkpoint(kind, path)


def _get_data_location(location: model_schema.DataLocation) -> state.DataLocation:
    match location:
        case model_schema.ServerData(address=address):
            return state.DataLocation(DataLocationKind.SERVER, address)
        case model_schema.LocalData(path=path):
            return state.DataLocation(DataLocationKind.LOCAL, path)
        case model_schema.WeightedHttpData(url=url):
            return state.DataLocation(DataLocationKind.WEIGHTED_HTTP, url)
        case model_schema.PreprocessedData(path=path):
            return state.DataLocation(DataLocationKind.PREPROCESSED, path)
        case model_schema.HttpData(content=content):
            return _get_http_data(content)
        case str():
            return state.DataLocation(DataLocationKind.DUMMY)


def _get_http_data(content: model_schema.HttpContent) -> state.DataLocation:
    seed = content.shuffle.seed if isinstance(content.shuffle, model_schema.SeededShuffle) else None
    return state.DataLocation(
        DataLocationKind.HTTP,
        http=_get_http_location(content.location),
        token_size=_TOKEN_SIZES[content.token_size_in_bytes],
        shuffle_seed=seed,
    )


def _get_http_location(location: model_schema.HttpLocation) -> state.HttpLocation:
    match location:
        case model_schema.SingleUrl(url=url):
            return state.HttpLocation(HttpLocationKind.SINGLE_URL, url)
        case model_schema.Gcp(content=gcp):
            return state.HttpLocation(HttpLocationKind.GCP, gcp.bucket_name, gcp.filter_directory)
        case model_schema.NumberedFiles(content=files):
            return state.HttpLocation(
                HttpLocationKind.NUMBERED_FILES,
                files.url_template,
                start_index=files.start_index,
                n_left_pad_zeros=files.n_left_pad_zeros,
                num_files=files.num_files,
            )


def _get_schedule(schedule: model_schema.LrSchedule) -> state.LrSchedule:
    match schedule:
        case model_schema.ConstantSchedule():
            kind = ScheduleKind.CONSTANT
        case model_schema.LinearSchedule():
            kind = ScheduleKind.LINEAR
        case model_schema.CosineSchedule():
            kind = ScheduleKind.COSINE
        case model_schema.WarmupStableDecaySchedule():
            kind = ScheduleKind.WARMUP_STABLE_DECAY
    return state.LrSchedule(kind, **schedule.content.model_dump())


def _get_optimizer(optimizer: model_schema.Optimizer) -> state.Optimizer:
    match optimizer:
        case model_schema.DistroOptimizer(content=distro):
            return state.Optimizer(OptimizerKind.DISTRO, **distro.model_dump())
        case model_schema.AdamWOptimizer(content=adamw):
            values = adamw.model_dump(exclude={"betas"})
            return state.Optimizer(OptimizerKind.ADAMW, betas=(adamw.betas[0], adamw.betas[1]), **values)
        case str():
            return state.Optimizer(OptimizerKind.DUMMY)
