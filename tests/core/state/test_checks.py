"""Every rule on a run's configuration, broken once."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from psyche.core.encoding.account import encode_config, encode_model
from psyche.core.state.config_checks import check_config, find_config_problems
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.state import (
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
from psyche.testing.builders import build_config, build_model

BAD_CONFIGS: list[tuple[str, dict[str, int]]] = [
    ("cooldown_time", {"cooldown_time": 0}),
    ("max_round_train_time", {"max_round_train_time": 0}),
    ("round_witness_time", {"round_witness_time": 0}),
    ("rounds_per_epoch", {"rounds_per_epoch": 0}),
    ("total_steps", {"total_steps": 0}),
    ("min_clients", {"min_clients": 0}),
    ("init_min_clients", {"min_clients": 3, "init_min_clients": 2}),
    ("init_min_clients", {"init_min_clients": 257}),
    ("witness_nodes", {"witness_nodes": 33}),
    ("global_batch_size_start", {"global_batch_size_start": 0}),
    ("global_batch_size_end", {"global_batch_size_end": 11}),
    ("verification_percent", {"verification_percent": 100}),
    ("canary_permille", {"canary_permille": 1_001}),
    ("waiting_for_members_extra_time", {"waiting_for_members_extra_time": 0}),
    ("waiting_for_members_extra_time", {"waiting_for_members_extra_time": 256}),
    ("evict_after", {"evict_after": 0}),
    ("late_limit", {"late_limit": 0}),
    ("straggler_percent", {"straggler_percent": 65_536}),
    ("min_stake", {"min_stake": -1}),
    ("warmup_time", {"warmup_time": 1 << 64}),
    ("warmup_time", {"epoch_time": 30}),
    ("max_round_train_time", {"warmup_time": 1, "epoch_time": 20}),
]


@pytest.mark.parametrize(("key", "changes"), BAD_CONFIGS)
def test_a_broken_rule_names_its_key(key: str, changes: dict[str, int]) -> None:
    problems = find_config_problems(build_config(**changes), build_model())
    assert f"config.{key}" in [problem.key for problem in problems]
    assert all(problem.what and problem.right for problem in problems)
    with pytest.raises(ConfigRefused, match=f"config.{key}: "):
        check_config(build_config(**changes), build_model())


GOOD_CONFIGS: list[dict[str, int]] = [
    {},
    {"warmup_time": 0},
    {"rounds_per_epoch": 0, "epoch_time": 31},
    {"epoch_time": 31},
    {"witness_nodes": 32, "min_clients": 1},
    {"min_clients": 256},
    {"verification_percent": 99},
    {"straggler_percent": 0},
]


@pytest.mark.parametrize("changes", GOOD_CONFIGS)
def test_what_obeys_every_rule_has_no_problems_and_fits_on_record(changes: dict[str, int]) -> None:
    config = build_config(**changes)
    assert find_config_problems(config, build_model()) == []
    assert len(encode_config(config)) == 128


def test_all_problems_are_named_at_once() -> None:
    problems = find_config_problems(Config(), Model())
    assert {"config.total_steps", "config.min_clients", "model.LLM.max_seq_len", "model.LLM.checkpoint"} <= {
        problem.key for problem in problems
    }


def test_a_problem_says_what_is_wrong_and_then_what_would_be_right() -> None:
    (problem,) = find_config_problems(build_config(entropy_delay=-1), build_model())
    assert problem.what == "-1 does not fit the record"
    assert problem.right == "0 to 255"
    with pytest.raises(ConfigRefused, match=r"config.min_clients: must not be zero \(right: above 0\)"):
        check_config(build_config(min_clients=0), build_model())


def test_a_schedule_that_is_too_short_is_told_its_length_and_then_the_least_one() -> None:
    schedule = replace(COSINE, warmup_steps=101)
    (problem,) = find_config_problems(build_config(), build_model(lr_schedule=schedule))
    assert problem.what == "total_steps 100 is below warmup_steps 101"
    assert problem.right == "at least 101"


def test_an_epoch_that_ends_before_its_first_round_holds_no_cold_start() -> None:
    config = build_config(epoch_time=30, warmup_time=30, max_round_train_time=1)
    keys = [problem.key for problem in find_config_problems(config, build_model(cold_start_warmup_steps=1))]
    assert keys == ["config.warmup_time", "model.LLM.cold_start_warmup_steps"]
    shorter = build_config(epoch_time=25, warmup_time=30, max_round_train_time=1)
    assert [problem.key for problem in find_config_problems(shorter, build_model())] == ["config.warmup_time"]


def test_the_rounds_of_an_epoch_are_counted_by_their_longest_time() -> None:
    config = build_config(epoch_time=32, warmup_time=30, max_round_train_time=1)
    assert find_config_problems(config, build_model(cold_start_warmup_steps=2)) == []
    timeless = build_config(epoch_time=32, warmup_time=30, max_round_train_time=0)
    assert [p.key for p in find_config_problems(timeless, build_model())] == ["config.max_round_train_time"]


def test_a_cold_start_must_fit_into_an_epoch_that_ends_by_time() -> None:
    model = build_model(cold_start_warmup_steps=4)
    assert find_config_problems(build_config(epoch_time=110), model) == []
    (problem,) = find_config_problems(build_config(epoch_time=109), model)
    assert problem.key == "model.LLM.cold_start_warmup_steps"
    assert find_config_problems(build_config(), model) == [], "only where epoch_time is set"


def http(kind: HttpLocationKind = HttpLocationKind.SINGLE_URL, url: str = "http://x", **fields: object) -> DataLocation:
    location = HttpLocation(kind, url)
    for name, value in fields.items():
        setattr(location, name, value)
    return DataLocation(DataLocationKind.HTTP, http=location)


DISTRO = build_model().optimizer
ADAMW = Optimizer(OptimizerKind.ADAMW, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
COSINE = LrSchedule(ScheduleKind.COSINE, base_lr=1e-3, warmup_steps=10, total_steps=100, final_lr=1e-4)
WSD = LrSchedule(ScheduleKind.WARMUP_STABLE_DECAY, base_lr=3.0, cosine_decay_final_lr=2.0, linear_decay_final_lr=1.0)
NUMBERED = HttpLocationKind.NUMBERED_FILES

BAD_MODELS: list[tuple[str, dict[str, object]]] = [
    ("max_seq_len", {"max_seq_len": 0}),
    ("max_seq_len", {"max_seq_len": 1 << 32}),
    ("cold_start_warmup_steps", {"cold_start_warmup_steps": -1}),
    ("checkpoint", {"checkpoint": Checkpoint()}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.P2P, "org/x")}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.P2P_GCS, "bucket")}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.HUB)}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.LOCAL, "x" * 129)}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.HUB, "x" * 65)}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.HUB, "x", "y" * 65)}),
    ("checkpoint", {"checkpoint": Checkpoint(CheckpointKind.GCS, "x\0")}),
    ("data_location", {"data_location": DataLocation(DataLocationKind.SERVER)}),
    ("data_location", {"data_location": DataLocation(DataLocationKind.SERVER, "x" * 65)}),
    ("data_location", {"data_location": DataLocation(DataLocationKind.LOCAL, "x" * 193)}),
    ("data_location", {"data_location": http(url="")}),
    ("data_location", {"data_location": http(url="x" * 193)}),
    ("data_location", {"data_location": http(HttpLocationKind.GCP, url="x" * 65)}),
    ("data_location", {"data_location": http(HttpLocationKind.GCP, filter_directory="x" * 193)}),
    ("data_location", {"data_location": http(NUMBERED)}),
    ("data_location", {"data_location": http(NUMBERED, num_files=1, start_index=-1)}),
    ("data_location", {"data_location": http(NUMBERED, num_files=1, n_left_pad_zeros=256)}),
    ("data_location", {"data_location": replace(http(), shuffle_seed=b"short")}),
    ("lr_schedule", {"lr_schedule": LrSchedule(base_lr=-1.0)}),
    ("lr_schedule", {"lr_schedule": LrSchedule(base_lr=math.nan)}),
    ("lr_schedule", {"lr_schedule": replace(COSINE, final_lr=math.inf)}),
    ("lr_schedule", {"lr_schedule": replace(COSINE, warmup_steps=101)}),
    ("lr_schedule", {"lr_schedule": replace(COSINE, kind=ScheduleKind.LINEAR, warmup_steps=101)}),
    ("lr_schedule", {"lr_schedule": replace(COSINE, total_steps=1 << 32)}),
    ("lr_schedule", {"lr_schedule": replace(WSD, cosine_decay_final_lr=4.0)}),
    ("lr_schedule", {"lr_schedule": replace(WSD, linear_decay_final_lr=2.5)}),
    ("optimizer", {"optimizer": replace(DISTRO, clip_grad_norm=0.0)}),
    ("optimizer", {"optimizer": replace(DISTRO, clip_grad_norm=-1.0)}),
    ("optimizer", {"optimizer": replace(DISTRO, weight_decay=math.nan)}),
    ("optimizer", {"optimizer": replace(DISTRO, compression_decay=1.5)}),
    ("optimizer", {"optimizer": replace(DISTRO, compression_decay=math.nan)}),
    ("optimizer", {"optimizer": replace(DISTRO, compression_topk=0)}),
    ("optimizer", {"optimizer": replace(DISTRO, compression_chunk=129)}),
    ("optimizer", {"optimizer": replace(ADAMW, betas=(0.9, 1.0))}),
    ("optimizer", {"optimizer": replace(ADAMW, betas=(-0.5, 0.9))}),
    ("optimizer", {"optimizer": replace(ADAMW, eps=0.0)}),
]


@pytest.mark.parametrize(("key", "changes"), BAD_MODELS)
def test_a_broken_model_rule_names_its_key(key: str, changes: dict[str, object]) -> None:
    problems = find_config_problems(build_config(), build_model(**changes))
    assert [problem.key for problem in problems] == [f"model.LLM.{key}"]


GOOD_MODELS: list[Callable[[], Model]] = [
    lambda: build_model(optimizer=ADAMW, lr_schedule=COSINE),
    lambda: build_model(optimizer=Optimizer(), lr_schedule=WSD),
    lambda: build_model(optimizer=replace(ADAMW, betas=(0.0, 0.0))),
    lambda: build_model(checkpoint=Checkpoint(CheckpointKind.DUMMY)),
    lambda: build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "x" * 128), max_seq_len=(1 << 32) - 1),
    lambda: build_model(data_location=DataLocation(DataLocationKind.SERVER, "host:20001")),
    lambda: build_model(data_location=replace(http(NUMBERED, url="http://x/{}", num_files=3), shuffle_seed=bytes(32))),
    lambda: build_model(data_location=http(HttpLocationKind.GCP, url="bucket", filter_directory="folder")),
]


@pytest.mark.parametrize("make", GOOD_MODELS)
def test_a_model_that_obeys_every_rule_fits_on_record(make: Callable[[], Model]) -> None:
    assert find_config_problems(build_config(), make()) == []
    assert len(encode_model(make())) == 960
