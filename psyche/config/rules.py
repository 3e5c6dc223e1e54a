"""Checks beyond the core's rules: warnings, and settings that this version cannot run yet."""

from collections.abc import Iterator
from typing import Final

from psyche.config.values import get_variant_name
from psyche.core.state.config_checks import TIMES
from psyche.core.state.enums import ANEW
from psyche.core.state.limits import MAX_WITNESSES
from psyche.core.state.state import (
    ZERO32,
    CheckpointKind,
    Config,
    DataLocationKind,
    DataType,
    Lookahead,
    Model,
    OptimizerKind,
    ScheduleKind,
)

OPEN_RUN_WITNESSES: Final = 16  # with this many, bad members are unlikely to win a committee
DAY_S: Final = 86_400  # a longer wait is probably a typo or the wrong unit
SHORT_WARMUP_S: Final = 5  # even the trainer of a small model takes that long to start
LEAST_SENT: Final = 16  # times that a run of local steps sends each weight, on the average
ENTROPY_ON_SERVER: Final = "config.entropy_delay is for the chain; a TCP server uses 0"

_RUNNABLE_CHECKPOINTS: Final = (CheckpointKind.DUMMY, CheckpointKind.LOCAL, CheckpointKind.HUB, CheckpointKind.GCS)
_LABELLED_DATA: Final = (DataLocationKind.PREPROCESSED, DataLocationKind.SERVER)


def find_unsupported(model: Model, config: Config | None = None) -> list[str]:
    """Find settings that load but cannot run yet; `server run` refuses them before anything starts."""
    found: list[str] = []
    if model.checkpoint.kind not in _RUNNABLE_CHECKPOINTS:
        kind = get_variant_name(model.checkpoint.kind)
        found.append(f"model.LLM.checkpoint {kind!r} cannot run yet; what runs: 'Local', 'Hub', 'Gcs'")
    if model.data_type is DataType.FINETUNING and model.data_location.kind not in _LABELLED_DATA:
        found.append(
            "model.LLM.data_type 'Finetuning' needs data with labels, which a data_location "
            f"{get_variant_name(model.data_location.kind)!r} has not; use 'Preprocessed' or 'Server'"
        )
    if model.optimizer.kind == OptimizerKind.ADAMW:
        found.append(
            "model.LLM.optimizer 'AdamW' trains in one process only (`psyche train`); what runs: 'Distro', 'LocalSteps'"
        )
    is_local = model.optimizer.kind is OptimizerKind.LOCAL_STEPS
    if config is not None and config.verification_percent and is_local and model.optimizer.inner_optimizer not in ANEW:
        inner = get_variant_name(model.optimizer.inner_optimizer)
        found.append(
            f"model.LLM.optimizer 'LocalSteps' with inner_optimizer {inner!r} keeps state from round to round, so that "
            "verifiers could recompute only the first inner step; with config.verification_percent above 0 take "
            "'AdamWAnew' or 'MuonAnew', or set that to 0"
        )
    looks_elsewhere = model.optimizer.kind is OptimizerKind.DISTRO and model.optimizer.lookahead is not Lookahead.OWN
    if config is not None and config.verification_percent and config.overlap and looks_elsewhere:
        found.append(
            "model.LLM.optimizer 'Distro' with overlap looks ahead along the momentum, which verifiers do not have; "
            'with config.verification_percent above 0 set lookahead = "Own", or overlap = false'
        )  # V4
    if config is not None and config.data_root != ZERO32 and model.data_location.kind is DataLocationKind.WEIGHTED_HTTP:
        found.append(
            "config.data_root must not be set with data_location 'WeightedHttp': a manifest is of one place, a mix has "
            "several; #sha256= and its hash behind the address pin the mix"
        )
    # Settings of safety without effect in this version: to ignore them would be worse than a refusal.
    unbuilt = () if config is None else (
        (config.reveal_gate, "reveal_gate cannot be true yet: bodies are served as soon as they are announced"),  # R6
        (config.convict and not model.optimizer.is_exact,  # V14
         "convict cannot be true where quantize_1bit is false: members have no equal weights to judge by"),
        (config.canary_permille, "canary_permille cannot be above 0 yet: there are no canaries"),
        (config.min_stake, "min_stake cannot be above 0 yet: nobody can deposit a stake, so nobody could join"),
    )  # fmt: skip
    return found + [f"config.{text}" for is_set, text in unbuilt if is_set]


def find_warnings(config: Config, model: Model, *, has_manifest: bool = False) -> list[str]:
    found = [*_find_witness_warnings(config), *_find_time_warnings(config)]
    if model.checkpoint.kind == CheckpointKind.DUMMY:
        found.append("model.LLM.checkpoint 'Dummy' names no weights: a server can run, but no client can train")
    location = model.data_location
    if location.kind is DataLocationKind.WEIGHTED_HTTP and "#" not in location.address:
        found.append(
            "model.LLM.data_location 'WeightedHttp': whoever changes the mix at this address changes what members "
            "train on, each at another time; end the address with #sha256= and what `sha256sum` says of the file"
        )
    if location.kind is DataLocationKind.HTTP and config.data_root == ZERO32:
        found.append(
            "config.data_root is not set: who finds other files at data_location trains on other tokens; "
            "`psyche data manifest` with this file makes data.manifest beside it, which sets the key"
        )
    if location.kind is DataLocationKind.HTTP and config.data_root != ZERO32 and not has_manifest:
        found.append(
            "config.data_root is set, but the manifest that it stands for is not here: if that has hashes, no client "
            "can read the data without it; put it beside this file as data.manifest, or name it with --data-manifest"
        )
    may_be_remote = location.kind is DataLocationKind.PREPROCESSED and location.address.count("/") == 1
    if may_be_remote and "@" not in location.address and config.data_root == ZERO32:
        found.append(
            "model.LLM.data_location 'Preprocessed': if this is a data set of the Hub, members that start later may "
            "read other rows; put @ and the commit behind its name"
        )
    if config.entropy_delay:
        found.append(ENTROPY_ON_SERVER)
    if 0 < config.global_batch_size_start < config.init_min_clients:
        found.append(
            f"config.global_batch_size_start {config.global_batch_size_start} is below init_min_clients "
            f"{config.init_min_clients}: some members would have nothing to train"
        )
    found += _find_density_warnings(config, model)
    schedule = model.lr_schedule
    has_end = schedule.kind in (ScheduleKind.LINEAR, ScheduleKind.COSINE)
    if has_end and 0 < schedule.total_steps < config.total_steps:
        found.append(
            f"model.LLM.lr_schedule reaches final_lr at step {schedule.total_steps}, the run goes on to "
            f"step {config.total_steps}"
        )
    return found


def _find_density_warnings(config: Config, model: Model) -> Iterator[str]:
    """Find local steps that send too little of a chunk for so few rounds."""
    optimizer, rounds = model.optimizer, config.total_steps - 1
    if optimizer.kind is not OptimizerKind.LOCAL_STEPS or not optimizer.compression_chunk:
        return
    area = optimizer.compression_chunk**2
    sent = optimizer.compression_topk / area * rounds
    if sent < LEAST_SENT:
        yield (
            f"model.LLM.optimizer compression_topk {optimizer.compression_topk} of {area} sends each weight {sent:.3g} "
            f"times in {rounds} rounds; with less than {LEAST_SENT} the loss suffers: raise it, or train more rounds"
        )


def _find_time_warnings(config: Config) -> list[str]:
    """Find times that obey every rule, but with which a run would stall or never start."""
    found = [
        f"config.{name} {getattr(config, name)} s is more than a day: one silent member may hold up everybody for "
        "that long (the unit is seconds)"
        for name in TIMES
        if name != "epoch_time" and getattr(config, name) > DAY_S
    ]
    if config.warmup_time < SHORT_WARMUP_S:
        found.append(
            f"config.warmup_time {config.warmup_time} s: members that have not loaded the weights by then are dropped "
            "from the epoch; a minute is usual"
        )
    if config.round_witness_time > config.max_round_train_time:
        found.append(
            f"config.round_witness_time {config.round_witness_time} s is more than max_round_train_time "
            f"{config.max_round_train_time} s: reporting a round rarely takes longer than training it"
        )
    return found


def _find_witness_warnings(config: Config) -> list[str]:
    nodes = config.witness_nodes
    if nodes == 2:
        return ["config.witness_nodes 2 tolerates no silent witness; use 0 (everybody), 1 or at least 3"]
    if 0 < nodes < OPEN_RUN_WITNESSES:
        text = (
            f"config.witness_nodes {nodes} is enough only among people who trust each other; "
            f"where strangers may join, use at least {OPEN_RUN_WITNESSES}, better {MAX_WITNESSES}"
        )
        return [text]
    return []
