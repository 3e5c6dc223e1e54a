"""An owner's changes to a run on record (P9): the update that a run.toml or a later end asks for, key by key."""

import copy
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from psyche.config.load import LoadedRun
from psyche.config.values import get_variant_name
from psyche.core.committee.schedule import compute_batch_size, compute_learning_rate
from psyche.core.encoding.account import decode_model, encode_model
from psyche.core.rules.apply import apply
from psyche.core.state.errors import CannotUpdate
from psyche.core.state.limits import NO_UPLOADER
from psyche.core.state.messages import Update
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Config,
    Coordinator,
    DataLocationKind,
    LrSchedule,
    Model,
    Progress,
    RunState,
    ScheduleKind,
)
from psyche.errors import ConfigError
from psyche.telemetry.run_line import WriteCommand, write_briefly
from psyche.telemetry.text import TEXT_COLUMNS, format_table

COMMIT: Final = "[0-9a-f]{40}"
PAGE: Final = "docs/owner.md"
FIGURES: Final = 6  # of a number; all of them if two numbers would look alike


class KeyChange(NamedTuple):
    """One key whose value changes, and both values as people write them."""

    key: str
    before: str
    after: str


def build_update(state: Coordinator, file: LoadedRun) -> Update:
    """Build the update that gives a run the settings of a run.toml; a part that stays as it is is None.

    `[progress]` and `[access]` of the file have no part in it. Sources of weights that members named (S10) stay.

    Raises:
        ConfigError: the file is of another run, names other first weights than the run has trained from, or changes a
            key that cannot change.
    """
    if file.run_id != state.run_id:
        raise ConfigError(f"{file.path}: describes the run {file.run_id!r}, but this run is {state.run_id!r}")
    model = _keep_sources(state, decode_model(encode_model(file.model)), file)
    is_set = state.config.total_steps > 0  # a run on a chain may be created without settings
    if is_set and model.optimizer.is_exact != state.model.optimizer.is_exact:  # S2: another kind of digest
        raise ConfigError(f"{file.path}: model.LLM.optimizer.Distro.quantize_1bit cannot change within a run ({PAGE})")
    return Update(
        config=None if file.config == state.config else file.config,
        model=None if model == state.model else model,
        metadata=None if file.metadata == state.metadata else file.metadata,
        bootstrap=None if [*file.bootstrap] == state.bootstrap else file.bootstrap,
    )


def _keep_sources(state: Coordinator, model: Model, file: LoadedRun) -> Model:
    """Return the model with the sources of weights that are on record, unless the run has no weights of its own yet."""
    is_named = state.checkpoint.uploader != NO_UPLOADER
    if not is_named and not _is_same_source(model.checkpoint, state.model.checkpoint):
        if state.certified.digest == ZERO32 or state.certified.epoch == state.progress.epoch:  # S8, S11: the first ones
            return model
        raise ConfigError(
            f"{file.path}: model.LLM.checkpoint: the run has trained up to step {state.progress.step} from "
            f"{state.model.checkpoint.name!r}; other weights need a new run ({PAGE})"
        )
    extra = [replace(source) for source in state.model.extra_checkpoints]
    return replace(model, checkpoint=replace(state.model.checkpoint), extra_checkpoints=extra)


def _is_same_source(named: Checkpoint, recorded: Checkpoint) -> bool:
    """Whether a file names the source on record, where a repository has the commit that was read (S11).

    A branch or no revision is no other source: whoever wants what it has now names the commit.
    """
    is_open = named.kind is CheckpointKind.HUB and not re.fullmatch(COMMIT, named.revision or "")
    return named == recorded or (is_open and (named.kind, named.name) == (recorded.kind, recorded.name))


def is_other_start(state: Coordinator, update: Update) -> bool:
    """Whether an update gives up what is certified: the next epoch starts from another source, step or sample (P9)."""
    model, progress = update.model or state.model, update.progress or state.progress
    sources = (model.checkpoint, model.extra_checkpoints)
    return (*sources, progress) != (state.model.checkpoint, state.model.extra_checkpoints, state.progress)


def is_first_start(state: Coordinator) -> bool:
    """Whether the owner may still say which weights a run begins with: it is new, or paused before its first epoch."""
    is_unsaid = state.run_state is RunState.PAUSED and state.certified.digest == ZERO32
    return state.run_state is RunState.UNINITIALIZED or is_unsaid


def compute_restart(state: Coordinator, step: int, config: Config, model: Model) -> Progress:
    """Compute the progress with which a run trains on from `step`: the epoch stays, because signatures name it (P5).

    The first sample is that of the record if it knows the step, otherwise the one after all earlier steps' samples.
    """
    marks = (state.certified, state.checkpoint)
    known = next((mark.data_index for mark in marks if mark.digest != ZERO32 and mark.step == step), None)
    return Progress(state.progress.epoch, step, _count_samples(step - 1, config, model) if known is None else known)


def _count_samples(steps: int, config: Config, model: Model) -> int:
    samples = 0
    for done in range(steps):
        tokens = samples * model.max_seq_len
        if tokens >= config.global_batch_size_warmup_tokens:  # from here on all batches have one size
            return samples + (steps - done) * compute_batch_size(config, tokens)
        samples += compute_batch_size(config, tokens)
    return samples


def build_extension(state: Coordinator, total_steps: int, *, stretch: bool = False) -> Update:
    """Build the update after which a run ends at step `total_steps`; with `stretch` its schedule ends later too.

    Raises:
        ConfigError: the run does not end earlier than that.
    """
    added = total_steps - state.config.total_steps
    if added <= 0:
        raise ConfigError(
            f"--total-steps {total_steps}: the run ends at step {state.config.total_steps} already; name a later step, "
            "or end it earlier with `psyche run update-config`"
        )
    schedule = _stretch(state.model.lr_schedule, added) if stretch else state.model.lr_schedule
    is_same = schedule == state.model.lr_schedule
    model = None if is_same else replace(copy.deepcopy(state.model), lr_schedule=schedule)
    return Update(config=replace(state.config, total_steps=total_steps), model=model)


def get_schedule_end(schedule: LrSchedule) -> int | None:
    """Return the step from which the learning rate no longer changes; None if that is the end of its warm-up."""
    match schedule.kind:
        case ScheduleKind.CONSTANT:
            return None
        case ScheduleKind.LINEAR | ScheduleKind.COSINE:
            return schedule.total_steps
        case ScheduleKind.WARMUP_STABLE_DECAY:
            decay_steps = schedule.cosine_decay_steps + schedule.linear_decay_steps
            return schedule.warmup_steps + schedule.stable_steps + decay_steps


def _stretch(schedule: LrSchedule, added: int) -> LrSchedule:
    """Move the end of a schedule by `added` steps: the decay gets longer, or the plateau before it."""
    match schedule.kind:
        case ScheduleKind.CONSTANT:
            return schedule
        case ScheduleKind.LINEAR | ScheduleKind.COSINE:
            return replace(schedule, total_steps=schedule.total_steps + added)
        case ScheduleKind.WARMUP_STABLE_DECAY:
            return replace(schedule, stable_steps=schedule.stable_steps + added)


def describe_update(state: Coordinator, update: Update) -> Iterator[str]:
    """Describe what the owner should know of an update besides the keys that change."""
    if note := describe_schedule(state, update):
        yield note
    if update.progress is not None:
        source = (update.model or state.model).checkpoint
        needed = "" if update.first_weights else ", which every member needs,"
        others = f" and not from those that its members certified last (step {state.certified.step})"
        other = "" if state.certified.digest == ZERO32 else others
        yield (
            f"the run trains on from step {update.progress.step}: the next epoch starts from the weights of "
            f"{get_variant_name(source.kind)} {source.name!r}{needed if other else needed.rstrip(',')}{other}"
        )
    if update.first_weights is not None:  # S11
        yield f"the next epoch starts from no other weights than those with the digest {update.first_weights.hex()}"
    end, step = (update.config or state.config).total_steps, (update.progress or state.progress).step
    if end <= step:
        yield f"the run has trained up to step {step - 1}: with total_steps {end} it ends as soon as it goes on"
    model = update.model or state.model
    kinds = {state.model.data_location.kind, model.data_location.kind}
    reads = (state.model.data_location, state.model.max_seq_len), (model.data_location, model.max_seq_len)
    if DataLocationKind.SERVER in kinds and reads[0] != reads[1]:
        yield "the server reads data_location and max_seq_len when it starts: start it again before `psyche run resume`"


def describe_schedule(state: Coordinator, update: Update) -> str | None:
    """Describe what becomes of the learning rate; None if there is nothing to say.

    Either it changes at the step that the run trains next, or it ends its fall long before the run ends.
    """
    config, model = update.config or state.config, update.model or state.model
    step, schedule = (update.progress or state.progress).step, model.lr_schedule
    before, after = (compute_learning_rate(s, step) for s in (state.model.lr_schedule, schedule))
    if before != after:
        return f"learning rate at step {step}: {_format_pair(before, after)[0]} -> {_format_pair(before, after)[1]}"
    end = get_schedule_end(schedule)
    if end is None or end >= config.total_steps or config.total_steps <= state.config.total_steps:
        return None
    return (
        f"the learning rate reaches its last value at step {end} and stays there up to step {config.total_steps}; "
        "`extend --stretch-schedule` moves the end of the schedule too"
    )


def find_changes(state: Coordinator, update: Update) -> Iterator[KeyChange]:
    parts = (
        ("config", state.config, update.config),
        ("model.LLM", state.model, update.model),
        ("progress", state.progress, update.progress),
        ("metadata", state.metadata, update.metadata),
        ("bootstrap", state.bootstrap, None if update.bootstrap is None else [*update.bootstrap]),
    )
    for key, before, after in parts:
        if after is not None:
            yield from _compare(key, before, after)


def lay_out_changes(state: Coordinator, update: Update) -> str:
    """Lay out each key that an update changes, with both values, and what else the owner should know of it."""
    rows = [(change.key, change.before, "->", change.after) for change in find_changes(state, update)]
    table = [format_table(("key", "now", "", "then"), rows, left=4)] if rows else []
    return "\n".join([*table, *(textwrap.fill(note, TEXT_COLUMNS) for note in describe_update(state, update))])


def _compare(key: str, before: object, after: object) -> Iterator[KeyChange]:
    if is_dataclass(before) and is_dataclass(after):
        for field in fields(before):
            yield from _compare(f"{key}.{field.name}", getattr(before, field.name), getattr(after, field.name))
    elif before != after:
        yield KeyChange(key, *_format_pair(before, after))


def _format_pair(before: object, after: object) -> tuple[str, str]:
    texts = _format(before), _format(after)
    return texts if texts[0] != texts[1] else (repr(before), repr(after))


def _format(value: object) -> str:
    if isinstance(value, IntEnum):
        return get_variant_name(value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{FIGURES}g}"
    if isinstance(value, str):
        return f'"{value}"'
    return value.hex() if isinstance(value, bytes) else str(value)


def check_update(state: Coordinator, update: Update, write: WriteCommand = write_briefly) -> None:
    """Check an update by the rules of the record, as the run's backend does when it arrives.

    `write` writes the commands that a message names.

    Raises:
        ConfigError: the run is not paused; the message says what to do.
        ConfigRefused: the result would break a rule; the message names key and rule.
    """
    try:
        apply(copy.deepcopy(state), state.state_start_unix, 0, ZERO32, update)
    except CannotUpdate as error:
        raise ConfigError(_explain_moment(state, write)) from error


def _explain_moment(state: Coordinator, write: WriteCommand) -> str:
    if state.run_state is RunState.FINISHED:
        progress = state.progress
        return (
            "the run is finished, and a finished run does not change: train its last weights further in a new "
            f"run, with step = {progress.step} and epoch_start_data_index = {progress.epoch_start_data_index} under "
            f"[progress] ({PAGE} shows how)"
        )
    if state.pending_pause:
        return "the run is not paused yet: it pauses when this epoch has ended; then run this command again"
    return (
        f"the run is going on, and these keys can change only while it is paused: run {write('run pause')}, wait "
        f"until {write('run info', signed=False)} says paused, run this command again, then {write('run resume')}"
    )
