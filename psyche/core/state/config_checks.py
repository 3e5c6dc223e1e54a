"""The rules that a run's configuration must obey before it can run.

`psyche.config` adds warnings about settings that are allowed but rarely intended.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from psyche.core.committee.schedule import round_f32
from psyche.core.encoding.fields import fits_text
from psyche.core.encoding.tables import CONFIG, MODEL
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.limits import (
    BOOTSTRAP_BYTES,
    CLIENT_VERSION_BYTES,
    DESCRIPTION_BYTES,
    HASH_BYTES,
    LOCAL_PATH_BYTES,
    MAX_BOOTSTRAP,
    MAX_DATA_INDEX,
    MAX_OUTER_RATE,
    NAME_BYTES,
    STRING_BYTES,
    U8_MAX,
    U32_MAX,
    URL_BYTES,
)
from psyche.core.state.settings import MOST, get_keys
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    Config,
    DataLocation,
    DataLocationKind,
    HttpLocation,
    HttpLocationKind,
    LrSchedule,
    Metadata,
    Model,
    Optimizer,
    OptimizerKind,
    Progress,
    ScheduleKind,
)
from psyche.errors import WireError


class BrokenRule(NamedTuple):
    """One broken rule: the path of the key in a run.toml, what is wrong, and what would be right."""

    key: str
    what: str
    right: str


TIMES: Final = tuple(name for name, key in get_keys(Config).items() if key.unit == "seconds" and key.width == "u64")


def find_config_problems(config: Config, model: Model) -> list[BrokenRule]:
    """Find all rules that the configuration breaks; the list is empty if the run can start.

    Settings that the record holds as float32 are checked as float32, so a configuration that is accepted once is
    accepted again after every pause.
    """
    problems = [
        *_find_key_problems("config", config),
        *_find_root_problems(config),
        *_find_epoch_problems(config, model),
        *_find_model_problems(model),
    ]
    return problems or [*_find_form_problems(config, model)]


def find_progress_problems(progress: Progress, config: Config) -> Iterator[BrokenRule]:
    """Find reasons why a run cannot begin at this progress: the record must still hold its numbers at the end."""
    yield from _find_key_problems("progress", progress, but="epoch_start_data_index")
    samples = max(0, config.total_steps - progress.step) * config.global_batch_size_end
    most = max(0, MAX_DATA_INDEX - samples)
    if not 0 <= progress.epoch_start_data_index <= most:
        what = f"{progress.epoch_start_data_index} leaves no room for the {samples} samples that the run may still need"
        yield BrokenRule("progress.epoch_start_data_index", what, f"0 to {most}")


def check_config(config: Config, model: Model) -> None:
    """Refuse a configuration that cannot run.

    Raises:
        ConfigRefused: the configuration breaks rules; the message names every key and rule.
    """
    refuse_problems(find_config_problems(config, model))


def refuse_problems(problems: Iterable[BrokenRule]) -> None:
    """Raise if there are any problems.

    Raises:
        ConfigRefused: there are problems; the message names every key and rule.
    """
    if found := "; ".join(f"{p.key}: {p.what} (right: {p.right})" for p in problems):
        raise ConfigRefused(found)


def _find_form_problems(config: Config, model: Model) -> Iterator[BrokenRule]:
    """Find values that no other rule covers but the record cannot hold, such as a setting of another kind."""
    try:
        CONFIG.write(config)
        MODEL.write(model)
    except WireError as error:
        yield BrokenRule("model.LLM", str(error), "only settings of the chosen kinds, each within its range")


def _find_root_problems(config: Config) -> Iterator[BrokenRule]:
    if len(config.data_root) != HASH_BYTES:
        yield BrokenRule(
            "config.data_root", f"has {len(config.data_root)} bytes", f"{HASH_BYTES} bytes; all zero: not stated"
        )


def _find_key_problems(table: str, record: object, *, but: str = "") -> Iterator[BrokenRule]:
    """Find numbers that are out of the range of their key, or below the key that they must not be below."""
    for name, key in get_keys(type(record)).items():
        if key.width not in MOST or name == but:
            continue
        value, path = getattr(record, name), f"{table}.{name}"
        fits, right = 0 <= value <= MOST[key.width], f"{key.least} to {key.limit}"
        if name in TIMES and not 0 <= value <= key.limit:
            yield BrokenRule(path, f"{value} s is longer than a run can count", f"{right} seconds, which is 136 years")
        elif value == 0 and key.least and not key.not_below:  # else it is below that one, or that one is zero
            yield BrokenRule(path, "must not be zero", "above 0")
        elif not fits:
            yield BrokenRule(path, f"{value} does not fit the record", right)
        elif value > key.limit:
            yield BrokenRule(path, f"{value} {key.beyond}", right)
        if key.not_below and fits and value < (least := getattr(record, key.not_below)):
            yield BrokenRule(path, f"{value} is below {key.not_below} {least}", f"{least} to {key.limit}")


def find_metadata_problems(metadata: Metadata) -> Iterator[BrokenRule]:
    """Why this cannot stand on record as what people see of a run."""
    yield from _find_text_problems("metadata.name", metadata.name, NAME_BYTES, needed=False)
    yield from _find_text_problems("metadata.description", metadata.description, DESCRIPTION_BYTES, needed=False)
    yield from _find_key_problems("metadata", metadata)


def find_version_problems(version: str) -> Iterator[BrokenRule]:
    """Why this cannot stand on record as the version of the client that the run asks for."""
    yield from _find_text_problems("client_version", version, CLIENT_VERSION_BYTES, needed=False)


def find_bootstrap_problems(addresses: Sequence[str]) -> Iterator[BrokenRule]:
    """Why these cannot stand on record as the addresses where a run's nodes are found."""
    right = f"at most {MAX_BOOTSTRAP} multiaddrs such as '/ip4/192.0.2.1/tcp/4001/p2p/...', of {BOOTSTRAP_BYTES} bytes"
    if len(addresses) > MAX_BOOTSTRAP:
        yield BrokenRule("bootstrap", f"{len(addresses)} addresses", right)
    for address in addresses:
        if not address.startswith("/") or not fits_text(address, BOOTSTRAP_BYTES):
            yield BrokenRule("bootstrap", f"{address!r} is no multiaddr or too long", right)


def _find_epoch_problems(config: Config, model: Model) -> Iterator[BrokenRule]:
    """An epoch needs an end; rules that compare with epoch_time hold only where it is set."""
    if not config.epoch_time:
        if not config.rounds_per_epoch:
            what = "an epoch would never end: neither rounds_per_epoch nor epoch_time is set"
            yield BrokenRule("config.rounds_per_epoch", what, "one of the two above 0")
        return
    for name in ("warmup_time", "max_round_train_time"):
        if getattr(config, name) >= config.epoch_time:
            what = f"{getattr(config, name)} is not below epoch_time {config.epoch_time}"
            yield BrokenRule(f"config.{name}", what, f"below {config.epoch_time}")
    # cold start must be over before the epoch is
    rounds = max(0, config.epoch_time - config.warmup_time) // max(1, config.max_round_train_time)
    if model.cold_start_warmup_steps > rounds:
        what = f"{model.cold_start_warmup_steps} is more than the {rounds} rounds that epoch_time is sure to hold"
        yield BrokenRule("model.LLM.cold_start_warmup_steps", what, f"at most {rounds}")


def _find_model_problems(model: Model) -> Iterator[BrokenRule]:
    yield from _find_key_problems("model.LLM", model)
    yield from _find_checkpoint_problems(model.checkpoint)
    yield from _find_data_problems(model.data_location)
    yield from _find_schedule_problems(model.lr_schedule)
    yield from _find_optimizer_problems(model.optimizer)


def _find_text_problems(key: str, text: str, limit: int, *, needed: bool = True) -> Iterator[BrokenRule]:
    if needed and not text:
        yield BrokenRule(key, "must not be empty", f"1 to {limit} bytes")
    size_bytes = len(text.encode(errors="surrogatepass"))
    if size_bytes > limit:
        yield BrokenRule(key, f"has {size_bytes} bytes", f"at most {limit} bytes")
    elif "\0" in text:
        yield BrokenRule(key, "contains a zero byte", "text without zero bytes")
    elif not fits_text(text, limit):
        yield BrokenRule(key, "is not Unicode text", "text that UTF-8 can write")


def _find_checkpoint_problems(checkpoint: Checkpoint) -> Iterator[BrokenRule]:
    key, kind = "model.LLM.checkpoint", checkpoint.kind
    if kind is CheckpointKind.EPHEMERAL:
        yield BrokenRule(key, "'Ephemeral' names no weights", "'Local', 'Hub', 'Gcs' or 'Dummy'")
        return
    if kind in (CheckpointKind.P2P, CheckpointKind.P2P_GCS):
        # S10: the source must outlive every peer
        yield BrokenRule(key, "peers cannot be the source: they may all be gone", "'Local', 'Hub', 'Gcs' or 'Dummy'")
    limit = LOCAL_PATH_BYTES if kind is CheckpointKind.LOCAL else STRING_BYTES
    yield from _find_text_problems(key, checkpoint.name, limit, needed=kind is not CheckpointKind.DUMMY)
    yield from _find_text_problems(key, checkpoint.revision or "", STRING_BYTES, needed=False)


def _find_data_problems(location: DataLocation) -> Iterator[BrokenRule]:
    key = "model.LLM.data_location"
    if location.kind is DataLocationKind.HTTP:
        yield from _find_http_problems(key, location.http)
        if location.shuffle_seed is not None and len(location.shuffle_seed) != 32:
            yield BrokenRule(key, f"the shuffle's seed has {len(location.shuffle_seed)} bytes", "32 bytes")
    elif location.kind is not DataLocationKind.DUMMY:
        limit = STRING_BYTES if location.kind is DataLocationKind.SERVER else URL_BYTES
        yield from _find_text_problems(key, location.address, limit)


def _find_http_problems(key: str, http: HttpLocation) -> Iterator[BrokenRule]:
    limit = URL_BYTES if http.kind is HttpLocationKind.SINGLE_URL else STRING_BYTES
    yield from _find_text_problems(key, http.url, limit)
    yield from _find_text_problems(key, http.filter_directory, URL_BYTES, needed=False)
    if http.kind is HttpLocationKind.NUMBERED_FILES:
        numbers = (("start_index", http.start_index, U32_MAX), ("n_left_pad_zeros", http.n_left_pad_zeros, U8_MAX),
                   ("num_files", http.num_files, U32_MAX))  # fmt: skip
        for name, value, most in numbers:
            if not 0 <= value <= most:
                yield BrokenRule(key, f"{name} {value} does not fit the record", f"0 to {most}")
        if not http.num_files:
            yield BrokenRule(key, "num_files must not be zero", "above 0")


def _find_schedule_problems(schedule: LrSchedule) -> Iterator[BrokenRule]:
    key, s = "model.LLM.lr_schedule", schedule
    for name, one in get_keys(LrSchedule).items():
        value = getattr(schedule, name)
        if one.width == "f64" and not (math.isfinite(_as_f32(value)) and value >= 0):  # headers carry it as float32
            yield BrokenRule(key, f"{name} {value} is no learning rate", "a finite float32, at least 0")
        if one.width == "u32" and not 0 <= value <= one.limit:
            yield BrokenRule(key, f"{name} {value} does not fit the record", f"0 to {one.limit}")
    if s.kind in (ScheduleKind.LINEAR, ScheduleKind.COSINE) and s.total_steps < s.warmup_steps:
        what = f"total_steps {s.total_steps} is below warmup_steps {s.warmup_steps}"
        yield BrokenRule(key, what, f"at least {s.warmup_steps}")
    falls = s.linear_decay_final_lr <= s.cosine_decay_final_lr <= s.base_lr
    if s.kind is ScheduleKind.WARMUP_STABLE_DECAY and not falls:
        what = "the rates must fall: linear_decay_final_lr <= cosine_decay_final_lr <= base_lr"
        yield BrokenRule(key, what, "rates in this order")


def _as_f32(value: float) -> float:
    """A setting as it stands on record; infinity where that cannot hold it."""
    try:
        return round_f32(value)
    except OverflowError:
        return math.inf


def _find_optimizer_problems(optimizer: Optimizer) -> Iterator[BrokenRule]:
    key, o = "model.LLM.optimizer", optimizer
    optional = {"clip_grad_norm": o.clip_grad_norm, "weight_decay": o.weight_decay}
    for name, value in optional.items():
        if value is not None and not (math.isfinite(_as_f32(value)) and value >= 0):
            yield BrokenRule(key, f"{name} {value} is not usable", "a finite float32, at least 0")
    if o.clip_grad_norm is not None and _as_f32(o.clip_grad_norm) == 0:
        yield BrokenRule(key, "clip_grad_norm 0 would remove every gradient", "above 0, or leave it out")
    if o.kind is OptimizerKind.DISTRO:
        yield from _find_distro_problems(key, o)
    if o.kind is OptimizerKind.LOCAL_STEPS:
        yield from _find_local_problems(key, o)
    if o.kind is OptimizerKind.ADAMW:
        if not all(0 <= _as_f32(b) < 1 for b in o.betas):
            yield BrokenRule(key, f"betas {list(o.betas)} are not usable", "two numbers from 0 to below 1")
        if not 0 < _as_f32(o.eps) < math.inf:
            yield BrokenRule(key, f"eps {o.eps} is not usable", "a small number above 0")


def _find_distro_problems(key: str, o: Optimizer) -> Iterator[BrokenRule]:
    if not 0 <= _as_f32(o.compression_decay) <= 1:  # also refuses what is not a number
        yield BrokenRule(key, f"compression_decay {o.compression_decay} is not usable", "0 to 1")
    yield from _find_count_problems(key, o, "compression_topk", "compression_chunk")


def _find_local_problems(key: str, o: Optimizer) -> Iterator[BrokenRule]:
    if not 0 <= _as_f32(o.error_decay) <= 1:
        yield BrokenRule(key, f"error_decay {o.error_decay} is not usable", "0 to 1")
    if not 0 < _as_f32(o.outer_rate) <= MAX_OUTER_RATE:
        yield BrokenRule(key, f"outer_rate {o.outer_rate} is not usable", f"above 0 to {MAX_OUTER_RATE}")
    yield from _find_count_problems(key, o, "compression_topk", "compression_chunk", "value_bits", "inner_steps")
    if not 0 <= o.merge_step < max(1, o.inner_steps):
        what = f"merge_step {o.merge_step} is not below inner_steps {o.inner_steps}"
        yield BrokenRule(key, what, "below inner_steps; 0: no merge within a round")


def _find_count_problems(key: str, o: Optimizer, *names: str) -> Iterator[BrokenRule]:
    for name in names:
        value, limit = getattr(o, name), get_keys(Optimizer)[name].limit
        if not 0 < value <= limit:
            yield BrokenRule(key, f"{name} {value} is not usable", f"1 to {limit}")
