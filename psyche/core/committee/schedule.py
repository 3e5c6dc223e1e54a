"""The learning rate as a function of the step, the batch size as a function of the tokens trained."""

import math
import struct
from typing import Final

from psyche.core.state.enums import ScheduleKind
from psyche.core.state.state import Config, Epoch, LrSchedule, Model

_F32: Final = struct.Struct("<f")
_U32: Final = struct.Struct("<I")


def _compute_linear(start: float, end: float, done: int, length: int) -> float:
    return start + (end - start) * done / length


def _compute_cosine(start: float, end: float, done: int, length: int) -> float:
    return end + (start - end) * (0.5 * (1.0 + math.cos(math.pi * done / length)))


def _compute_stable_decay(schedule: LrSchedule, done: int) -> float:
    """The rate of a warm-up/stable/decay schedule, `done` steps after the end of its warm-up."""
    if done < schedule.stable_steps:
        return schedule.base_lr
    done -= schedule.stable_steps
    if done < schedule.cosine_decay_steps:
        return _compute_cosine(schedule.base_lr, schedule.cosine_decay_final_lr, done, schedule.cosine_decay_steps)
    done -= schedule.cosine_decay_steps
    if done < schedule.linear_decay_steps:
        start, end = schedule.cosine_decay_final_lr, schedule.linear_decay_final_lr
        return _compute_linear(start, end, done, schedule.linear_decay_steps)
    return schedule.linear_decay_final_lr


def _compute_scheduled(schedule: LrSchedule, step: int) -> float:
    if step < schedule.warmup_steps:
        return _compute_linear(schedule.warmup_init_lr, schedule.base_lr, step, schedule.warmup_steps)
    done, length = step - schedule.warmup_steps, schedule.total_steps - schedule.warmup_steps
    if schedule.kind is ScheduleKind.CONSTANT:
        return schedule.base_lr
    if schedule.kind is ScheduleKind.WARMUP_STABLE_DECAY:
        return _compute_stable_decay(schedule, done)
    if done >= length:
        return schedule.final_lr  # past its end the cosine would rise again
    decay = _compute_linear if schedule.kind is ScheduleKind.LINEAR else _compute_cosine
    return decay(schedule.base_lr, schedule.final_lr, done, length)


def compute_learning_rate(schedule: LrSchedule, step: int, cold_start: tuple[int, int] | None = None) -> float:
    """The learning rate of a step, in float64.

    During a cold start, the steps (first, last) of `get_cold_start` with both included, the rate is scaled
    linearly from zero at `first` to its full value at `last`. Phases of the schedule with no steps are skipped.
    """
    rate = _compute_scheduled(schedule, step)
    if cold_start is None:
        return rate
    first, last = cold_start
    return rate * (step - first) / (last - first) if first <= step <= last and first < last else rate


def get_cold_start(epoch: Epoch, model: Model) -> tuple[int, int] | None:
    """The first and last step of the epoch's cold start; None if the epoch has none."""
    if not epoch.cold_start or not model.cold_start_warmup_steps:
        return None
    return epoch.start_step, epoch.start_step + model.cold_start_warmup_steps


def compute_batch_size(config: Config, tokens_done: int) -> int:
    """The number of samples of a round after `tokens_done` tokens, in integer arithmetic, halves rounded up (T9)."""
    start, end = config.global_batch_size_start, config.global_batch_size_end
    span = config.global_batch_size_warmup_tokens
    if tokens_done >= span:
        return end
    return (2 * (start * span + (end - start) * tokens_done) + span) // (2 * span)


def round_f32(value: float) -> float:
    """The nearest float32 value. Settings recorded as float32 must be rounded before they are used.

    Raises:
        OverflowError: the value is beyond the range of float32.
    """
    return float(_F32.unpack(_F32.pack(value))[0])


def get_lr_bits(rate: float) -> int:
    """The bit pattern of the rate as float32, as result headers and the chain digest carry it."""
    return int(_U32.unpack(_F32.pack(rate))[0])
