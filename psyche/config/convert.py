"""Conversion of validated tables to the core's own types."""

from typing import Final

from psyche.config import schema
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
_CHECKPOINT_KINDS: Final[dict[type[schema.Table], CheckpointKind]] = {
    schema.DummyCheckpoint: CheckpointKind.DUMMY,
    schema.HubCheckpoint: CheckpointKind.HUB,
    schema.P2PCheckpoint: CheckpointKind.P2P,
    schema.GcsCheckpoint: CheckpointKind.GCS,
    schema.P2PGcsCheckpoint: CheckpointKind.P2P_GCS,
    schema.LocalCheckpoint: CheckpointKind.LOCAL,
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


def get_model(table: schema.LlmTable) -> state.Model:
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


def _get_checkpoint(checkpoint: schema.Checkpoint) -> state.Checkpoint:
    if isinstance(checkpoint, str):
        return state.Checkpoint(CheckpointKind.EPHEMERAL)
    kind = _CHECKPOINT_KINDS[type(checkpoint)]
    match checkpoint.content:
        case schema.HubRepo(repo_id=name, revision=revision) | schema.DummyRepo(repo_id=name, revision=revision):
            return state.Checkpoint(kind, name, revision)
        case schema.Bucket(bucket=name, prefix=prefix):
            return state.Checkpoint(kind, name, prefix)
        case schema.LocalFolder(path=path):
            return state.Checkpoint(kind, path)


def _get_data_location(location: schema.DataLocation) -> state.DataLocation:
    match location:
        case schema.ServerData(address=address):
            return state.DataLocation(DataLocationKind.SERVER, address)
        case schema.LocalData(path=path):
            return state.DataLocation(DataLocationKind.LOCAL, path)
        case schema.WeightedHttpData(url=url):
            return state.DataLocation(DataLocationKind.WEIGHTED_HTTP, url)
        case schema.PreprocessedData(path=path):
            return state.DataLocation(DataLocationKind.PREPROCESSED, path)
        case schema.HttpData(content=content):
            return _get_http_data(content)
        case str():
            return state.DataLocation(DataLocationKind.DUMMY)


def _get_http_data(content: schema.HttpContent) -> state.DataLocation:
    seed = content.shuffle.seed if isinstance(content.shuffle, schema.SeededShuffle) else None
    return state.DataLocation(
        DataLocationKind.HTTP,
        http=_get_http_location(content.location),
        token_size=_TOKEN_SIZES[content.token_size_in_bytes],
        shuffle_seed=seed,
    )


def _get_http_location(location: schema.HttpLocation) -> state.HttpLocation:
    match location:
        case schema.SingleUrl(url=url):
            return state.HttpLocation(HttpLocationKind.SINGLE_URL, url)
        case schema.Gcp(content=gcp):
            return state.HttpLocation(HttpLocationKind.GCP, gcp.bucket_name, gcp.filter_directory)
        case schema.NumberedFiles(content=files):
            return state.HttpLocation(
                HttpLocationKind.NUMBERED_FILES,
                files.url_template,
                start_index=files.start_index,
                n_left_pad_zeros=files.n_left_pad_zeros,
                num_files=files.num_files,
            )


def _get_schedule(schedule: schema.LrSchedule) -> state.LrSchedule:
    match schedule:
        case schema.ConstantSchedule():
            kind = ScheduleKind.CONSTANT
        case schema.LinearSchedule():
            kind = ScheduleKind.LINEAR
        case schema.CosineSchedule():
            kind = ScheduleKind.COSINE
        case schema.WarmupStableDecaySchedule():
            kind = ScheduleKind.WARMUP_STABLE_DECAY
    return state.LrSchedule(kind, **schedule.content.model_dump())


def _get_optimizer(optimizer: schema.Optimizer) -> state.Optimizer:
    match optimizer:
        case schema.DistroOptimizer(content=distro):
            return state.Optimizer(OptimizerKind.DISTRO, **distro.model_dump())
        case schema.AdamWOptimizer(content=adamw):
            values = adamw.model_dump(exclude={"betas"})
            return state.Optimizer(OptimizerKind.ADAMW, betas=(adamw.betas[0], adamw.betas[1]), **values)
        case str():
            return state.Optimizer(OptimizerKind.DUMMY)
