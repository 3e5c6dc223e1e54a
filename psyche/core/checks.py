"""The rules that a run's configuration must obey before it can run.

Warnings about what is allowed but seldom meant are the business of `psyche.config`.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from psyche.core.errors import ConfigRefused
from psyche.core.limits import (
    LOCAL_PATH_BYTES,
    MAX_CLIENTS,
    MAX_WITNESSES,
    STRING_BYTES,
    U8_MAX,
    U16_MAX,
    U32_MAX,
    U64_MAX,
    URL_BYTES,
)
from psyche.core.plan import MAX_CHUNK_EDGE
from psyche.core.state import (
    Checkpoint,
    CheckpointKind,
    Config,
    DataLocation,
    DataLocationKind,
    HttpLocation,
    HttpLocationKind,
    LrSchedule,
    Model,
    Optimizer,
    OptimizerKind,
    ScheduleKind,
)


class Problem(NamedTuple):
    """One broken rule: the key's path in a run.toml, what is wrong, what would be right."""

    key: str
    what: str
    right: str


_WIDTHS: Final = {
    "warmup_time": U64_MAX,
    "cooldown_time": U64_MAX,
    "max_round_train_time": U64_MAX,
    "round_witness_time": U64_MAX,
    "global_batch_size_warmup_tokens": U64_MAX,
    "epoch_time": U64_MAX,
    "min_stake": U64_MAX,
    "total_steps": U32_MAX,
    "rounds_per_epoch": U32_MAX,
    "tolerance_fp32_ppm": U32_MAX,
    "tolerance_bf16_ppm": U32_MAX,
    "init_min_clients": U16_MAX,
    "min_clients": U16_MAX,
    "witness_nodes": U16_MAX,
    "global_batch_size_start": U16_MAX,
    "global_batch_size_end": U16_MAX,
    "straggler_percent": U16_MAX,
    "opened_chunks": U16_MAX,
    "canary_permille": U16_MAX,
    "verification_percent": U8_MAX,
    "waiting_for_members_extra_time": U8_MAX,
    "entropy_delay": U8_MAX,
    "evict_after": U8_MAX,
    "late_limit": U8_MAX,
    "tie_breakers": U8_MAX,
}
_POSITIVE: Final = (
    "cooldown_time",
    "max_round_train_time",
    "round_witness_time",
    "min_clients",
    "total_steps",
    "global_batch_size_start",
    "waiting_for_members_extra_time",
    "evict_after",
    "late_limit",
)
_MAX_VERIFICATION_PERCENT: Final = 99  # somebody must train
_PERMILLE: Final = 1_000


def find_config_problems(config: Config, model: Model) -> list[Problem]:
    """All rules that the configuration breaks; empty if it can run."""
    return [*_find_width_problems(config), *_find_number_problems(config), *_find_epoch_problems(config, model),
            *_find_model_problems(model)]  # fmt: skip


def check_config(config: Config, model: Model) -> None:
    """Whether a run can go on with this configuration.

    Raises:
        ConfigRefused: it cannot; the message names every key and rule.
    """
    if problems := find_config_problems(config, model):
        raise ConfigRefused("; ".join(f"{p.key}: {p.what} (right: {p.right})" for p in problems))


def _find_width_problems(config: Config) -> Iterator[Problem]:
    for name, most in _WIDTHS.items():
        value: int = getattr(config, name)
        if not 0 <= value <= most:
            yield Problem(f"config.{name}", f"{value} does not fit its place on record", f"0 to {most}")


def _find_number_problems(config: Config) -> Iterator[Problem]:
    for name in _POSITIVE:
        if not getattr(config, name):
            yield Problem(f"config.{name}", "must not be zero", "above 0")
    c = config
    rules = (
        (c.init_min_clients >= c.min_clients, "init_min_clients", f"is below min_clients {c.min_clients}",
         f"{c.min_clients} to {MAX_CLIENTS}"),
        (c.init_min_clients <= MAX_CLIENTS, "init_min_clients", f"is above {MAX_CLIENTS}, the most there can be",
         f"at most {MAX_CLIENTS}"),
        (c.witness_nodes <= MAX_WITNESSES, "witness_nodes", f"is above {MAX_WITNESSES}, the records of a round",
         f"0 (everybody) to {MAX_WITNESSES}"),
        (c.global_batch_size_end >= c.global_batch_size_start, "global_batch_size_end",
         f"is below global_batch_size_start {c.global_batch_size_start}", f"at least {c.global_batch_size_start}"),
        (c.verification_percent <= _MAX_VERIFICATION_PERCENT, "verification_percent", "leaves nobody who trains",
         f"0 to {_MAX_VERIFICATION_PERCENT}"),
        (c.canary_permille <= _PERMILLE, "canary_permille", "is more than all", f"0 to {_PERMILLE}"),
    )  # fmt: skip
    for holds, name, what, right in rules:
        if not holds:
            yield Problem(f"config.{name}", f"{getattr(config, name)} {what}", right)


def _find_epoch_problems(config: Config, model: Model) -> Iterator[Problem]:
    """An epoch needs an end; rules that compare with epoch_time hold only where it is set."""
    if not config.epoch_time:
        if not config.rounds_per_epoch:
            what = "an epoch would never end: neither rounds_per_epoch nor epoch_time is set"
            yield Problem("config.rounds_per_epoch", what, "one of the two above 0")
        return
    for name in ("warmup_time", "max_round_train_time"):
        if getattr(config, name) >= config.epoch_time:
            what = f"{getattr(config, name)} is not below epoch_time {config.epoch_time}"
            yield Problem(f"config.{name}", what, f"below {config.epoch_time}")
    # cold start must be over before the epoch is
    rounds = max(0, config.epoch_time - config.warmup_time) // max(1, config.max_round_train_time)
    if model.cold_start_warmup_steps > rounds:
        what = f"{model.cold_start_warmup_steps} is more than the {rounds} rounds that epoch_time is sure to hold"
        yield Problem("model.LLM.cold_start_warmup_steps", what, f"at most {rounds}")


def _find_model_problems(model: Model) -> Iterator[Problem]:
    for name in ("max_seq_len", "cold_start_warmup_steps"):
        if not 0 <= getattr(model, name) <= U32_MAX:
            what = f"{getattr(model, name)} does not fit its place on record"
            yield Problem(f"model.LLM.{name}", what, f"0 to {U32_MAX}")
    if not model.max_seq_len:
        yield Problem("model.LLM.max_seq_len", "must not be zero", "above 0")
    yield from _find_checkpoint_problems(model.checkpoint)
    yield from _find_data_problems(model.data_location)
    yield from _find_schedule_problems(model.lr_schedule)
    yield from _find_optimizer_problems(model.optimizer)


def _find_text_problems(key: str, text: str, limit: int, *, needed: bool = True) -> Iterator[Problem]:
    if needed and not text:
        yield Problem(key, "must not be empty", f"1 to {limit} bytes")
    if len(text.encode()) > limit:
        yield Problem(key, f"has {len(text.encode())} bytes", f"at most {limit} bytes")
    if "\0" in text:
        yield Problem(key, "contains a zero byte", "text without zero bytes")


def _find_checkpoint_problems(checkpoint: Checkpoint) -> Iterator[Problem]:
    key, kind = "model.LLM.checkpoint", checkpoint.kind
    if kind is CheckpointKind.EPHEMERAL:
        yield Problem(key, "'Ephemeral' names no weights", "'Local', 'Hub', 'Gcs' or 'Dummy'")
        return
    if kind in (CheckpointKind.P2P, CheckpointKind.P2P_GCS):
        # S10: the source must outlive every peer
        yield Problem(key, "peers cannot be the source: they may all be gone", "'Local', 'Hub', 'Gcs' or 'Dummy'")
    limit = LOCAL_PATH_BYTES if kind is CheckpointKind.LOCAL else STRING_BYTES
    yield from _find_text_problems(key, checkpoint.name, limit, needed=kind is not CheckpointKind.DUMMY)
    yield from _find_text_problems(key, checkpoint.revision or "", STRING_BYTES, needed=False)


def _find_data_problems(location: DataLocation) -> Iterator[Problem]:
    key = "model.LLM.data_location"
    if location.kind is DataLocationKind.HTTP:
        yield from _find_http_problems(key, location.http)
        if location.shuffle_seed is not None and len(location.shuffle_seed) != 32:
            yield Problem(key, f"the shuffle's seed has {len(location.shuffle_seed)} bytes", "32 bytes")
    elif location.kind is not DataLocationKind.DUMMY:
        limit = STRING_BYTES if location.kind is DataLocationKind.SERVER else URL_BYTES
        yield from _find_text_problems(key, location.address, limit)


def _find_http_problems(key: str, http: HttpLocation) -> Iterator[Problem]:
    limit = URL_BYTES if http.kind is HttpLocationKind.SINGLE_URL else STRING_BYTES
    yield from _find_text_problems(key, http.url, limit)
    yield from _find_text_problems(key, http.filter_directory, URL_BYTES, needed=False)
    if http.kind is HttpLocationKind.NUMBERED_FILES:
        numbers = (("start_index", http.start_index, U32_MAX), ("n_left_pad_zeros", http.n_left_pad_zeros, U8_MAX),
                   ("num_files", http.num_files, U32_MAX))  # fmt: skip
        for name, value, most in numbers:
            if not 0 <= value <= most:
                yield Problem(key, f"{name} {value} does not fit its place on record", f"0 to {most}")
        if not http.num_files:
            yield Problem(key, "num_files must not be zero", "above 0")


def _find_schedule_problems(schedule: LrSchedule) -> Iterator[Problem]:
    key, s = "model.LLM.lr_schedule", schedule
    rates = {"base_lr": s.base_lr, "warmup_init_lr": s.warmup_init_lr, "final_lr": s.final_lr,
             "cosine_decay_final_lr": s.cosine_decay_final_lr,
             "linear_decay_final_lr": s.linear_decay_final_lr}  # fmt: skip
    for name, rate in rates.items():
        if not (math.isfinite(rate) and rate >= 0):
            yield Problem(key, f"{name} {rate} is no learning rate", "a finite number, at least 0")
    steps = {"warmup_steps": s.warmup_steps, "total_steps": s.total_steps, "stable_steps": s.stable_steps,
             "cosine_decay_steps": s.cosine_decay_steps, "linear_decay_steps": s.linear_decay_steps}  # fmt: skip
    for name, count in steps.items():
        if not 0 <= count <= U32_MAX:
            yield Problem(key, f"{name} {count} does not fit its place on record", f"0 to {U32_MAX}")
    if s.kind in (ScheduleKind.LINEAR, ScheduleKind.COSINE) and s.total_steps < s.warmup_steps:
        what = f"total_steps {s.total_steps} is below warmup_steps {s.warmup_steps}"
        yield Problem(key, what, f"at least {s.warmup_steps}")
    falls = s.linear_decay_final_lr <= s.cosine_decay_final_lr <= s.base_lr
    if s.kind is ScheduleKind.WARMUP_STABLE_DECAY and not falls:
        what = "the rates must fall: linear_decay_final_lr <= cosine_decay_final_lr <= base_lr"
        yield Problem(key, what, "rates in this order")


def _find_optimizer_problems(optimizer: Optimizer) -> Iterator[Problem]:
    key, o = "model.LLM.optimizer", optimizer
    optional = {"clip_grad_norm": o.clip_grad_norm, "weight_decay": o.weight_decay}
    for name, value in optional.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield Problem(key, f"{name} {value} is not usable", "a finite number, at least 0")
    if o.clip_grad_norm == 0:
        yield Problem(key, "clip_grad_norm 0 would remove every gradient", "above 0, or leave it out")
    if o.kind is OptimizerKind.DISTRO:
        yield from _find_distro_problems(key, o)
    if o.kind is OptimizerKind.ADAMW:
        if not all(math.isfinite(b) and 0 <= b < 1 for b in o.betas):
            yield Problem(key, f"betas {list(o.betas)} are not usable", "two numbers from 0 to below 1")
        if not (math.isfinite(o.eps) and o.eps > 0):
            yield Problem(key, f"eps {o.eps} is not usable", "a small number above 0")


def _find_distro_problems(key: str, o: Optimizer) -> Iterator[Problem]:
    if not 0 <= o.compression_decay <= 1:  # also refuses what is not a number
        yield Problem(key, f"compression_decay {o.compression_decay} is not usable", "0 to 1")
    if not 0 < o.compression_topk <= U16_MAX:
        yield Problem(key, f"compression_topk {o.compression_topk} is not usable", f"1 to {U16_MAX}")
    if not 0 < o.compression_chunk <= MAX_CHUNK_EDGE:
        yield Problem(key, f"compression_chunk {o.compression_chunk} is not usable", f"1 to {MAX_CHUNK_EDGE}")
