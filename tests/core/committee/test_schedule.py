import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche.core.committee.schedule import (
    compute_batch_size,
    compute_learning_rate,
    get_cold_start,
    get_lr_bits,
    round_f32,
)
from psyche.core.state.state import Config, Epoch, LrSchedule, Model, ScheduleKind

COSINE = LrSchedule(ScheduleKind.COSINE, base_lr=4e-4, warmup_steps=250, total_steps=25_000, final_lr=4e-5)
LINEAR = LrSchedule(ScheduleKind.LINEAR, 1.0, 0.0, 10, total_steps=30, final_lr=0.5)
STABLE = LrSchedule(
    ScheduleKind.WARMUP_STABLE_DECAY,
    base_lr=2e-4,
    warmup_steps=2_000,
    stable_steps=161_000,
    cosine_decay_steps=150_000,
    cosine_decay_final_lr=2e-5,
    linear_decay_steps=100_000,
    linear_decay_final_lr=1e-5,
)


@pytest.mark.parametrize(
    ("step", "golden"), [(100, 1.6e-4), (251, 3.999999985499204e-4), (12_625, 2.2e-4), (25_000, 4e-5)]
)
def test_cosine_gives_the_golden_rates(step: int, golden: float) -> None:
    assert compute_learning_rate(COSINE, step) == pytest.approx(golden, rel=1e-14)


def test_cosine_does_not_rise_again_past_its_end() -> None:
    assert compute_learning_rate(COSINE, 26_000) == 4e-5


@pytest.mark.parametrize(
    ("step", "golden"),
    [
        (1_000, 1e-4),
        (2_000, 2e-4),
        (162_999, 2e-4),
        (163_000, 2e-4),
        (238_000, 1.1e-4),
        (312_999, 2.0000000019739213e-5),
        (313_000, 2e-5),
        (363_000, 1.5e-5),
        (413_000, 1e-5),
        (999_999, 1e-5),
    ],
)
def test_warmup_stable_decay_gives_the_golden_rates(step: int, golden: float) -> None:
    assert compute_learning_rate(STABLE, step) == pytest.approx(golden, rel=1e-14)


@pytest.mark.parametrize(
    ("step", "rate"), [(0, 0.0), (5, 0.5), (10, 1.0), (20, 0.75), (29, 0.525), (30, 0.5), (99, 0.5)]
)
def test_linear_falls_from_base_to_final(step: int, rate: float) -> None:
    assert compute_learning_rate(LINEAR, step) == pytest.approx(rate, rel=1e-15)


def test_constant_stays_after_warm_up_and_no_warm_up_is_skipped() -> None:
    constant = LrSchedule(ScheduleKind.CONSTANT, base_lr=3.0, warmup_init_lr=1.0, warmup_steps=4)
    assert [compute_learning_rate(constant, s) for s in (0, 2, 4, 400)] == [1.0, 2.0, 3.0, 3.0]
    assert compute_learning_rate(LrSchedule(base_lr=3.0), 0) == 3.0


@pytest.mark.parametrize("kind", [ScheduleKind.LINEAR, ScheduleKind.COSINE])
def test_a_schedule_that_ends_within_its_warm_up_goes_to_the_final_rate(kind: ScheduleKind) -> None:
    short = LrSchedule(kind, 1.0, 0.0, warmup_steps=10, total_steps=5, final_lr=0.25)
    assert compute_learning_rate(short, 9) == 0.9
    assert compute_learning_rate(short, 10) == 0.25


@pytest.mark.parametrize(("cosine_steps", "linear_steps", "step"), [(0, 0, 7), (3, 0, 10), (0, 4, 11), (3, 4, 14)])
def test_a_span_of_no_steps_is_skipped_and_each_ends_before_its_last_step(
    cosine_steps: int, linear_steps: int, step: int
) -> None:
    spans = LrSchedule(
        ScheduleKind.WARMUP_STABLE_DECAY, 3.0, 0.0, 2, stable_steps=5, cosine_decay_steps=cosine_steps,
        cosine_decay_final_lr=2.0, linear_decay_steps=linear_steps, linear_decay_final_lr=1.0,
    )  # fmt: skip
    assert compute_learning_rate(spans, 6) == 3.0
    assert compute_learning_rate(spans, step) == 1.0
    assert compute_learning_rate(spans, step - 1) > 1.0


@pytest.mark.parametrize("kind", [ScheduleKind.LINEAR, ScheduleKind.COSINE])
def test_a_schedule_that_ends_with_its_warm_up_has_the_final_rate_then(kind: ScheduleKind) -> None:
    assert compute_learning_rate(LrSchedule(kind, 1.0, 0.0, 10, total_steps=10, final_lr=0.5), 10) == 0.5


def test_a_schedule_has_no_spans_and_no_rates_of_its_own() -> None:
    assert LrSchedule() == LrSchedule(ScheduleKind.CONSTANT, 0.0, 0.0, 0, 0, 0.0, 0, 0, 0.0, 0, 0.0)


@pytest.mark.parametrize(("step", "factor"), [(99, 1.0), (100, 0.0), (101, 0.25), (104, 1.0), (105, 1.0)])
def test_cold_start_rises_from_zero_over_a_closed_interval(step: int, factor: float) -> None:
    assert compute_learning_rate(LrSchedule(base_lr=2.0), step, (100, 104)) == 2.0 * factor


def test_a_cold_start_of_no_steps_changes_nothing() -> None:
    assert compute_learning_rate(LrSchedule(base_lr=2.0), 7, (7, 7)) == 2.0


@pytest.mark.parametrize(("cold", "steps", "bounds"), [(True, 5, (40, 45)), (False, 5, None), (True, 0, None)])
def test_only_a_cold_epoch_of_a_run_that_wants_it_has_a_cold_start(
    *, cold: bool, steps: int, bounds: tuple[int, int] | None
) -> None:
    assert get_cold_start(Epoch(cold_start=cold, start_step=40), Model(cold_start_warmup_steps=steps)) == bounds


def ramp(start: int, end: int, tokens: int) -> Config:
    return Config(global_batch_size_start=start, global_batch_size_end=end, global_batch_size_warmup_tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [(0, 12_288), (274_877_906_944, 22_528), (549_755_813_887, 32_768), (549_755_813_888, 32_768), (1 << 90, 32_768)],
)
def test_the_batch_ramp_gives_the_golden_sizes_t9(tokens: int, size: int) -> None:
    assert compute_batch_size(ramp(12_288, 32_768, 549_755_813_888), tokens) == size


def test_without_a_ramp_the_batch_has_its_end_size_at_once() -> None:
    assert compute_batch_size(ramp(1, 9, 0), 0) == 9


@given(st.integers(1, 65_535), st.integers(0, 65_535), st.integers(1, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_half_a_sample_rounds_up_and_the_ramp_never_leaves_its_ends(
    start: int, more: int, span: int, done: int
) -> None:
    end = min(65_535, start + more)
    size = compute_batch_size(ramp(start, end, span), done)
    assert start <= size <= end
    if done < span:
        exact_doubled = 2 * start * span + 2 * (end - start) * done
        assert exact_doubled - span < 2 * size * span <= exact_doubled + span


def test_the_bits_of_a_rate_are_those_of_its_float32() -> None:
    assert get_lr_bits(4e-4) == struct.unpack("<I", struct.pack("<f", 4e-4))[0] == 0x39D1B717
    assert get_lr_bits(0.0) == 0
    assert get_lr_bits(1.0) == 0x3F800000


@given(st.floats(width=32, allow_nan=False))
def test_a_float32_value_stays_what_it_is(value: float) -> None:
    assert round_f32(value) == value


def test_other_values_go_to_the_nearest_float32() -> None:
    assert round_f32(0.999) == 0.9990000128746033
    with pytest.raises(OverflowError):
        round_f32(1e39)
