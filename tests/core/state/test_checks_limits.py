"""The rules on a run's configuration: what each says when it is broken, and the last values that it accepts."""

import math
from dataclasses import replace
from typing import Any

import pytest

from psyche.core.state.config_checks import (
    BrokenRule,
    find_bootstrap_problems,
    find_config_problems,
    find_metadata_problems,
    find_progress_problems,
    find_version_problems,
)
from psyche.core.state.limits import MAX_BOOTSTRAP, MAX_DATA_INDEX, MAX_TIME_S
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    DataLocation,
    DataLocationKind,
    HttpLocation,
    HttpLocationKind,
    LrSchedule,
    Metadata,
    Optimizer,
    OptimizerKind,
    Progress,
    ScheduleKind,
)
from psyche.testing.builders import build_config, build_model

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
DISTRO = build_model().optimizer
ADAMW = Optimizer(OptimizerKind.ADAMW, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
COSINE = LrSchedule(ScheduleKind.COSINE, base_lr=1e-3, warmup_steps=10, total_steps=100, final_lr=1e-4)
WSD = LrSchedule(ScheduleKind.WARMUP_STABLE_DECAY, base_lr=3.0, cosine_decay_final_lr=2.0, linear_decay_final_lr=1.0)
SOURCES = "'Local', 'Hub', 'Gcs' or 'Dummy'"
PLACE = "does not fit the record"

CONFIG_TEXTS: list[tuple[dict[str, int], str, str]] = [
    ({"canary_permille": 1_001}, "1001 is more than all", "0 to 1000"),
    ({"witness_nodes": 33}, "33 is above 32, the records of a round", "0 to 32"),
    (
        {"rounds_per_epoch": 0},
        "an epoch would never end: neither rounds_per_epoch nor epoch_time is set",
        "one of the two above 0",
    ),
    ({"max_round_train_time": 31, "epoch_time": 31}, "31 is not below epoch_time 31", "below 31"),
    ({"evict_after": 256}, f"256 {PLACE}", "1 to 255"),
]


def build_numbered(**fields: Any) -> DataLocation:
    """Numbered files over HTTP."""
    http = HttpLocation(HttpLocationKind.NUMBERED_FILES, "http://x/{}", **({"num_files": 1} | fields))
    return DataLocation(DataLocationKind.HTTP, http=http)


MODEL_TEXTS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_seq_len": 1 << 32}, f"{1 << 32} {PLACE}", f"1 to {U32}"),
    ({"max_seq_len": 0}, "must not be zero", "above 0"),
    ({"checkpoint": Checkpoint(CheckpointKind.HUB)}, "must not be empty", "1 to 64 bytes"),
    ({"checkpoint": Checkpoint(CheckpointKind.HUB, "x" * 65)}, "has 65 bytes", "at most 64 bytes"),
    ({"checkpoint": Checkpoint(CheckpointKind.GCS, "x\0")}, "contains a zero byte", "text without zero bytes"),
    ({"checkpoint": Checkpoint()}, "'Ephemeral' names no weights", SOURCES),
    (
        {"checkpoint": Checkpoint(CheckpointKind.P2P, "x")},
        "peers cannot be the source: they may all be gone",
        SOURCES,
    ),
    (
        {"data_location": replace(build_numbered(), shuffle_seed=b"short")},
        "the shuffle's seed has 5 bytes",
        "32 bytes",
    ),
    ({"data_location": build_numbered(start_index=-1)}, f"start_index -1 {PLACE}", f"0 to {U32}"),
    ({"data_location": build_numbered(num_files=0)}, "num_files must not be zero", "above 0"),
    ({"lr_schedule": LrSchedule(base_lr=-1.0)}, "base_lr -1.0 is no learning rate", "a finite float32, at least 0"),
    ({"lr_schedule": replace(COSINE, stable_steps=-1)}, f"stable_steps -1 {PLACE}", f"0 to {U32}"),
    (
        {"lr_schedule": replace(WSD, cosine_decay_final_lr=4.0)},
        "the rates must fall: linear_decay_final_lr <= cosine_decay_final_lr <= base_lr",
        "rates in this order",
    ),
    (
        {"optimizer": replace(DISTRO, weight_decay=-1.0)},
        "weight_decay -1.0 is not usable",
        "a finite float32, at least 0",
    ),
    (
        {"optimizer": replace(DISTRO, clip_grad_norm=0.0)},
        "clip_grad_norm 0 would remove every gradient",
        "above 0, or leave it out",
    ),
    (
        {"optimizer": replace(ADAMW, betas=(0.9, 1.0))},
        "betas [0.9, 1.0] are not usable",
        "two numbers from 0 to below 1",
    ),
    ({"optimizer": replace(ADAMW, eps=math.inf)}, "eps inf is not usable", "a small number above 0"),
    ({"optimizer": replace(DISTRO, compression_decay=-0.5)}, "compression_decay -0.5 is not usable", "0 to 1"),
    ({"optimizer": replace(DISTRO, compression_topk=U16 + 1)}, "compression_topk 65536 is not usable", f"1 to {U16}"),
    ({"optimizer": replace(DISTRO, compression_chunk=0)}, "compression_chunk 0 is not usable", "1 to 128"),
]


@pytest.mark.parametrize(("changes", "what", "right"), CONFIG_TEXTS)
def test_a_broken_rule_of_the_configuration_says_what_is_wrong_and_what_is_right(
    changes: dict[str, int], what: str, right: str
) -> None:
    problems = find_config_problems(build_config(**changes), build_model())
    assert (what, right) in [(problem.what, problem.right) for problem in problems]


@pytest.mark.parametrize(("changes", "what", "right"), MODEL_TEXTS)
def test_a_broken_rule_of_the_model_says_what_is_wrong_and_what_is_right(
    changes: dict[str, Any], what: str, right: str
) -> None:
    (problem,) = find_config_problems(build_config(), build_model(**changes))
    assert (problem.what, problem.right) == (what, right)


LAST_CONFIGS: list[dict[str, int]] = [
    {"canary_permille": 1_000},
    {"evict_after": 255},
    {"straggler_percent": U16},
    {"tolerance_fp32_ppm": U32},
    {"min_stake": (1 << 64) - 1},
]
LAST_MODELS: list[dict[str, Any]] = [
    {"data_location": build_numbered(start_index=U32, n_left_pad_zeros=255, num_files=U32)},
    {"lr_schedule": replace(WSD, stable_steps=U32)},
    {"lr_schedule": replace(COSINE, total_steps=10)},
    {"lr_schedule": replace(WSD, linear_decay_final_lr=2.0)},
    {"lr_schedule": replace(WSD, cosine_decay_final_lr=3.0)},
    {"optimizer": replace(DISTRO, compression_decay=0.0)},
    {"optimizer": replace(DISTRO, compression_decay=1.0)},
    {"optimizer": replace(DISTRO, compression_topk=1)},
    {"optimizer": replace(DISTRO, compression_topk=U16)},
    {"optimizer": replace(DISTRO, compression_chunk=1)},
    {"optimizer": replace(DISTRO, compression_chunk=128)},
]


@pytest.mark.parametrize("changes", LAST_CONFIGS)
def test_the_last_value_that_a_rule_of_the_configuration_allows_is_allowed(changes: dict[str, int]) -> None:
    assert find_config_problems(build_config(**changes), build_model()) == []


@pytest.mark.parametrize("changes", LAST_MODELS)
def test_the_last_value_that_a_rule_of_the_model_allows_is_allowed(changes: dict[str, Any]) -> None:
    assert find_config_problems(build_config(), build_model(**changes)) == []


def test_a_cold_start_that_is_too_long_is_told_how_long_it_may_be() -> None:
    model = build_model(cold_start_warmup_steps=4)
    (problem,) = find_config_problems(build_config(epoch_time=109), model)
    assert problem.what == "4 is more than the 3 rounds that epoch_time is sure to hold"
    assert problem.right == "at most 3"


def test_where_a_run_begins_is_told_by_key_fault_and_remedy() -> None:
    config = build_config(total_steps=10, global_batch_size_start=8, global_batch_size_end=8)
    found = list(find_progress_problems(Progress(epoch=U16 + 1, step=0), config))
    assert found[:2] == [
        BrokenRule("progress.epoch", f"{U16 + 1} {PLACE}", f"0 to {U16}"),
        BrokenRule("progress.step", "must not be zero", "above 0"),
    ]
    for step, samples in ((2, 64), (10, 0), (99, 0)):  # a run that is past its last step takes no more
        last = Progress(step=step, epoch_start_data_index=MAX_DATA_INDEX - samples)
        assert not list(find_progress_problems(last, config))
        beyond = replace(last, epoch_start_data_index=MAX_DATA_INDEX - samples + 1)
        (problem,) = find_progress_problems(beyond, config)
        assert problem.right == f"0 to {MAX_DATA_INDEX - samples}"


def test_a_run_whose_samples_have_no_room_can_begin_at_the_first_alone() -> None:
    config = build_config(total_steps=U32, global_batch_size_start=U32, global_batch_size_end=U32)
    assert (U32 - 1) * U32 > MAX_DATA_INDEX
    assert not list(find_progress_problems(Progress(step=1), config))
    assert list(find_progress_problems(Progress(step=1, epoch_start_data_index=1), config))


def test_what_people_see_and_where_nodes_are_is_told_by_key_fault_and_remedy() -> None:
    (problem,) = find_metadata_problems(Metadata(vocab_size=U64 + 1))
    assert problem == BrokenRule("metadata.vocab_size", f"{U64 + 1} {PLACE}", f"0 to {U64}")
    assert not list(find_version_problems("")), "any version will do"
    many, wrong = find_bootstrap_problems(["/ip4/192.0.2.1/tcp/1"] * MAX_BOOTSTRAP + ["nowhere"])
    assert (many.key, many.what) == ("bootstrap", f"{MAX_BOOTSTRAP + 1} addresses")
    assert (wrong.key, wrong.what) == ("bootstrap", "'nowhere' is no multiaddr or too long")
    assert many.right == wrong.right
    assert many.right.startswith(f"at most {MAX_BOOTSTRAP} multiaddrs")


def test_a_time_is_told_by_key_fault_and_remedy() -> None:
    (problem,) = find_config_problems(build_config(cooldown_time=MAX_TIME_S + 1), build_model())
    what = f"{MAX_TIME_S + 1} s is longer than a run can count"
    assert problem == BrokenRule("config.cooldown_time", what, f"1 to {MAX_TIME_S} seconds, which is 136 years")
    assert not find_config_problems(build_config(cooldown_time=MAX_TIME_S), build_model())


def test_what_no_rule_names_and_does_not_fit_the_record_is_refused_all_the_same() -> None:
    (problem,) = find_config_problems(replace(build_config(), overlap=300), build_model())  # pyright: ignore[reportArgumentType]
    assert (problem.key, problem.what[:16]) == ("model.LLM", "Config.overlap: ")
