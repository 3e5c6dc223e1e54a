"""The rules on a run's configuration: each broken once, what is said then, and the last values that they accept."""

import math
from dataclasses import replace
from typing import Any

import pytest

from psyche.core.encoding.account import encode_config, encode_model
from psyche.core.state.config_checks import (
    BrokenRule,
    check_config,
    find_bootstrap_problems,
    find_config_problems,
    find_metadata_problems,
    find_progress_problems,
    find_version_problems,
)
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.limits import MAX_BOOTSTRAP, MAX_DATA_INDEX, MAX_TIME_S
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
from psyche.testing.builders import build_config, build_model

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
FITS = "does not fit the record"
FINITE = "a finite float32, at least 0"

# --- one key

ROOM = {"epoch_time": 0, "rounds_per_epoch": 1, "min_clients": 1, "init_min_clients": 256, "global_batch_size_start": 1,
        "global_batch_size_end": U16}  # fmt: skip
NUMBERS = [(record, name) for record in (Config, Model) for name, key in get_keys(record).items() if key.width in MOST]


def find_problems(record: type, **changes: Any) -> list[BrokenRule]:
    if record is Model:
        return find_config_problems(build_config(), build_model(**changes))
    return find_config_problems(build_config(**(ROOM | changes)), build_model())


@pytest.mark.parametrize(("record", "name"), NUMBERS, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_key_takes_every_number_of_its_range_and_no_other(record: type, name: str) -> None:
    key, others = get_keys(record)[name], {"epoch_time": MAX_TIME_S} if name == "rounds_per_epoch" else {}
    path = f"{'config' if record is Config else 'model.LLM'}.{name}"
    for value in (key.least, key.limit):
        assert find_problems(record, **{**others, name: value}) == []
    for value in (key.least - 1, key.limit + 1, MOST[key.width] + 1):
        problems = find_problems(record, **{**others, name: value})
        assert path in [problem.key for problem in problems]
        assert all(problem.what and problem.right for problem in problems)


@pytest.mark.parametrize(
    ("record", "changes", "what", "right"),
    [
        (Config, {"canary_permille": 1_001}, "1001 is more than all", "0 to 1000"),
        (Config, {"witness_nodes": 33}, "33 is above 32, the records of a round", "0 to 32"),
        (Config, {"evict_after": 256}, f"256 {FITS}", "1 to 255"),
        (Config, {"entropy_delay": -1}, f"-1 {FITS}", "0 to 255"),
        (Config, {"min_clients": 0}, "must not be zero", "above 0"),
        (Config, {"cooldown_time": MAX_TIME_S + 1}, f"{MAX_TIME_S + 1} s is longer than a run can count",
         f"1 to {MAX_TIME_S} seconds, which is 136 years"),
        (Config, {"min_clients": 3, "init_min_clients": 2}, "2 is below min_clients 3", "3 to 256"),
        (Config, {"global_batch_size_start": 12, "global_batch_size_end": 11},
         "11 is below global_batch_size_start 12", f"12 to {U16}"),
        (Config, {"rounds_per_epoch": 0}, "an epoch would never end: neither rounds_per_epoch nor epoch_time is set",
         "one of the two above 0"),
        (Config, {"max_round_train_time": 31, "epoch_time": 31}, "31 is not below epoch_time 31", "below 31"),
        (Config, {"epoch_time": 30}, "30 is not below epoch_time 30", "below 30"),
        (Model, {"max_seq_len": 1 << 32}, f"{1 << 32} {FITS}", f"1 to {U32}"),
    ],
)  # fmt: skip
def test_a_broken_rule_says_what_is_wrong_and_what_is_right(
    record: type, changes: dict[str, int], what: str, right: str
) -> None:
    assert (what, right) in [(problem.what, problem.right) for problem in find_problems(record, **changes)]


@pytest.mark.parametrize("name", ["init_min_clients", "global_batch_size_end"])
def test_a_zero_below_another_key_is_named_once(name: str) -> None:
    assert [problem.key for problem in find_problems(Config, **{name: 0})] == [f"config.{name}"]


def test_what_stands_in_for_keys_breaks_no_rule() -> None:
    """`psyche.config` checks the readable keys of a table beside stand-ins for the others."""
    numbers = {name: key.stand_in for name, key in get_keys(Config).items() if key.width in MOST}
    assert find_problems(Config, **(numbers | {"rounds_per_epoch": 1})) == []


def test_all_problems_are_named_at_once_and_in_one_refusal() -> None:
    keys = {problem.key for problem in find_config_problems(Config(), Model())}
    assert keys >= {"config.total_steps", "config.min_clients", "model.LLM.max_seq_len", "model.LLM.checkpoint"}
    with pytest.raises(ConfigRefused, match=r"config.min_clients: must not be zero \(right: above 0\)"):
        check_config(build_config(min_clients=0), build_model())
    assert len(encode_config(build_config())) == 128


# --- an epoch's end


@pytest.mark.parametrize(
    ("epoch", "warmup", "train", "cold", "broken"),
    [
        (31, 30, 30, 0, []),
        (30, 30, 1, 1, ["config.warmup_time", "model.LLM.cold_start_warmup_steps"]),
        (25, 30, 1, 0, ["config.warmup_time"]),
        (32, 30, 1, 2, []),  # rounds are counted by their longest time
        (32, 30, 0, 0, ["config.max_round_train_time"]),
        (110, 30, 20, 4, []),
        (109, 30, 20, 4, ["model.LLM.cold_start_warmup_steps"]),
        (0, 30, 20, 4, []),  # only where epoch_time is set
    ],
)
def test_an_epoch_that_ends_by_time_holds_its_warmup_a_round_and_the_cold_start(
    epoch: int, warmup: int, train: int, cold: int, broken: list[str]
) -> None:
    config = build_config(epoch_time=epoch, warmup_time=warmup, max_round_train_time=train)
    problems = find_config_problems(config, build_model(cold_start_warmup_steps=cold))
    assert [problem.key for problem in problems] == broken
    if epoch == 109:
        assert problems[0].what == "4 is more than the 3 rounds that epoch_time is sure to hold"
        assert problems[0].right == "at most 3"


# --- the model


def http(kind: HttpLocationKind = HttpLocationKind.SINGLE_URL, url: str = "http://x", **more: Any) -> DataLocation:
    return DataLocation(DataLocationKind.HTTP, http=HttpLocation(kind, url, **more))


def numbered(**more: Any) -> DataLocation:
    return http(HttpLocationKind.NUMBERED_FILES, "http://x/{}", **({"num_files": 1} | more))


DISTRO = build_model().optimizer
ADAMW = Optimizer(OptimizerKind.ADAMW, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
LOCAL_STEPS = Optimizer(
    OptimizerKind.LOCAL_STEPS, compression_topk=64, compression_chunk=64, inner_steps=8, merge_step=2, value_bits=2,
    error_decay=0.95, outer_rate=1.0,
)  # fmt: skip
COSINE = LrSchedule(ScheduleKind.COSINE, base_lr=1e-3, warmup_steps=10, total_steps=100, final_lr=1e-4)
WSD = LrSchedule(ScheduleKind.WARMUP_STABLE_DECAY, base_lr=3.0, cosine_decay_final_lr=2.0, linear_decay_final_lr=1.0)
LINEAR = replace(COSINE, kind=ScheduleKind.LINEAR)
HUB, GCP = CheckpointKind.HUB, HttpLocationKind.GCP
SERVER, LOCAL = DataLocationKind.SERVER, DataLocationKind.LOCAL
SOURCES = "'Local', 'Hub', 'Gcs' or 'Dummy'"
GONE = "peers cannot be the source: they may all be gone"
FALL = "the rates must fall: linear_decay_final_lr <= cosine_decay_final_lr <= base_lr"
ORDER = "rates in this order"

BAD_MODELS: list[tuple[str, Any, str, str]] = [
    ("checkpoint", Checkpoint(), "'Ephemeral' names no weights", SOURCES),
    ("checkpoint", Checkpoint(CheckpointKind.P2P, "org/x"), GONE, SOURCES),
    ("checkpoint", Checkpoint(CheckpointKind.P2P_GCS, "bucket"), GONE, SOURCES),
    ("checkpoint", Checkpoint(HUB), "must not be empty", "1 to 64 bytes"),
    ("checkpoint", Checkpoint(HUB, "x" * 65), "has 65 bytes", "at most 64 bytes"),
    ("checkpoint", Checkpoint(HUB, "x", "y" * 65), "has 65 bytes", "at most 64 bytes"),
    ("checkpoint", Checkpoint(CheckpointKind.LOCAL, "x" * 129), "has 129 bytes", "at most 128 bytes"),
    ("checkpoint", Checkpoint(CheckpointKind.GCS, "x\0"), "contains a zero byte", "text without zero bytes"),
    ("data_location", DataLocation(SERVER), "must not be empty", "1 to 64 bytes"),
    ("data_location", DataLocation(SERVER, "x" * 65), "has 65 bytes", "at most 64 bytes"),
    ("data_location", DataLocation(LOCAL, "x" * 193), "has 193 bytes", "at most 192 bytes"),
    ("data_location", http(url=""), "must not be empty", "1 to 192 bytes"),
    ("data_location", http(url="x" * 193), "has 193 bytes", "at most 192 bytes"),
    ("data_location", http(GCP, "x" * 65), "has 65 bytes", "at most 64 bytes"),
    ("data_location", http(GCP, filter_directory="x" * 193), "has 193 bytes", "at most 192 bytes"),
    ("data_location", numbered(num_files=0), "num_files must not be zero", "above 0"),
    ("data_location", numbered(start_index=-1), f"start_index -1 {FITS}", f"0 to {U32}"),
    ("data_location", numbered(n_left_pad_zeros=256), f"n_left_pad_zeros 256 {FITS}", "0 to 255"),
    ("data_location", replace(http(), shuffle_seed=b"short"), "the shuffle's seed has 5 bytes", "32 bytes"),
    ("lr_schedule", LrSchedule(base_lr=-1.0), "base_lr -1.0 is no learning rate", FINITE),
    ("lr_schedule", LrSchedule(base_lr=math.nan), "base_lr nan is no learning rate", FINITE),
    ("lr_schedule", replace(COSINE, final_lr=math.inf), "final_lr inf is no learning rate", FINITE),
    ("lr_schedule", replace(COSINE, stable_steps=-1), f"stable_steps -1 {FITS}", f"0 to {U32}"),
    ("lr_schedule", replace(COSINE, total_steps=1 << 32), f"total_steps {1 << 32} {FITS}", f"0 to {U32}"),
    ("lr_schedule", replace(COSINE, warmup_steps=101), "total_steps 100 is below warmup_steps 101", "at least 101"),
    ("lr_schedule", replace(LINEAR, warmup_steps=101), "total_steps 100 is below warmup_steps 101", "at least 101"),
    ("lr_schedule", replace(WSD, cosine_decay_final_lr=4.0), FALL, ORDER),
    ("lr_schedule", replace(WSD, linear_decay_final_lr=2.5), FALL, ORDER),
    ("optimizer", replace(DISTRO, clip_grad_norm=0.0), "clip_grad_norm 0 would remove every gradient",
     "above 0, or leave it out"),
    ("optimizer", replace(DISTRO, clip_grad_norm=-1.0), "clip_grad_norm -1.0 is not usable", FINITE),
    ("optimizer", replace(DISTRO, weight_decay=-1.0), "weight_decay -1.0 is not usable", FINITE),
    ("optimizer", replace(DISTRO, weight_decay=math.nan), "weight_decay nan is not usable", FINITE),
    ("optimizer", replace(DISTRO, compression_decay=-0.5), "compression_decay -0.5 is not usable", "0 to 1"),
    ("optimizer", replace(DISTRO, compression_decay=1.5), "compression_decay 1.5 is not usable", "0 to 1"),
    ("optimizer", replace(DISTRO, compression_decay=math.nan), "compression_decay nan is not usable", "0 to 1"),
    ("optimizer", replace(DISTRO, compression_topk=0), "compression_topk 0 is not usable", f"1 to {U16}"),
    ("optimizer", replace(DISTRO, compression_topk=U16 + 1), "compression_topk 65536 is not usable", f"1 to {U16}"),
    ("optimizer", replace(DISTRO, compression_chunk=0), "compression_chunk 0 is not usable", "1 to 128"),
    ("optimizer", replace(DISTRO, compression_chunk=129), "compression_chunk 129 is not usable", "1 to 128"),
    ("optimizer", replace(ADAMW, betas=(0.9, 1.0)), "betas [0.9, 1.0] are not usable", "two numbers from 0 to below 1"),
    ("optimizer", replace(ADAMW, betas=(-0.5, 0.9)), "betas [-0.5, 0.9] are not usable",
     "two numbers from 0 to below 1"),
    ("optimizer", replace(ADAMW, eps=0.0), "eps 0.0 is not usable", "a small number above 0"),
    ("optimizer", replace(ADAMW, eps=math.inf), "eps inf is not usable", "a small number above 0"),
    *(("optimizer", replace(LOCAL_STEPS, error_decay=x), f"error_decay {x} is not usable", "0 to 1")
      for x in (-0.5, 1.5, math.nan)),
    *(("optimizer", replace(LOCAL_STEPS, outer_rate=x), f"outer_rate {x} is not usable", "above 0 to 16")
      for x in (0.0, -1.0, 16.5, math.inf, math.nan)),
    *(("optimizer", replace(LOCAL_STEPS, compression_topk=x), f"compression_topk {x} is not usable", f"1 to {U16}")
      for x in (0, U16 + 1)),
    *(("optimizer", replace(LOCAL_STEPS, compression_chunk=x), f"compression_chunk {x} is not usable", "1 to 128")
      for x in (0, 129)),
    *(("optimizer", replace(LOCAL_STEPS, value_bits=x), f"value_bits {x} is not usable", "1 to 2") for x in (0, 3)),
    *(("optimizer", replace(LOCAL_STEPS, merge_step=x), f"merge_step {x} is not below inner_steps 8",
       "below inner_steps; 0: no merge within a round") for x in (-1, 8)),
    *(("optimizer", replace(LOCAL_STEPS, inner_steps=x, merge_step=0), f"inner_steps {x} is not usable", "1 to 2048")
      for x in (0, 2_049)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "what", "right"), BAD_MODELS)
def test_a_broken_rule_of_the_model_says_what_is_wrong_and_what_is_right(
    name: str, value: object, what: str, right: str
) -> None:
    assert find_problems(Model, **{name: value}) == [BrokenRule(f"model.LLM.{name}", what, right)]


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": ADAMW, "lr_schedule": COSINE},
        {"optimizer": Optimizer(), "lr_schedule": WSD},
        {"optimizer": replace(ADAMW, betas=(0.0, 0.0))},
        {"optimizer": replace(DISTRO, compression_decay=0.0, compression_topk=1, compression_chunk=1)},
        {"optimizer": replace(DISTRO, compression_decay=1.0, compression_topk=U16, compression_chunk=128)},
        {"optimizer": replace(LOCAL_STEPS, inner_steps=2_048, merge_step=2_047, error_decay=1.0, outer_rate=16.0)},
        {"optimizer": replace(LOCAL_STEPS, inner_steps=1, merge_step=0, error_decay=0.0, outer_rate=1e-45,
                              value_bits=1)},
        {"checkpoint": Checkpoint(CheckpointKind.DUMMY)},
        {"checkpoint": Checkpoint(CheckpointKind.LOCAL, "x" * 128)},
        {"data_location": DataLocation(SERVER, "host:20001")},
        {"data_location": replace(numbered(start_index=U32, n_left_pad_zeros=255, num_files=U32),
                                  shuffle_seed=bytes(32))},
        {"data_location": http(GCP, url="bucket", filter_directory="folder")},
        {"lr_schedule": replace(WSD, stable_steps=U32)},
        {"lr_schedule": replace(COSINE, total_steps=10)},
        {"lr_schedule": replace(WSD, linear_decay_final_lr=2.0)},
        {"lr_schedule": replace(WSD, cosine_decay_final_lr=3.0)},
    ],
)  # fmt: skip
def test_a_model_that_obeys_every_rule_fits_on_record(changes: dict[str, Any]) -> None:
    assert find_problems(Model, **changes) == []
    assert len(encode_model(build_model(**changes))) == 960


def test_what_no_rule_names_and_does_not_fit_the_record_is_refused_all_the_same() -> None:
    (problem,) = find_problems(Config, overlap=300)
    assert (problem.key, problem.what[:16]) == ("model.LLM", "Config.overlap: ")


# --- where a run begins, and what people see of it


def test_where_a_run_begins_is_told_by_key_fault_and_remedy() -> None:
    config = build_config(total_steps=10, global_batch_size_start=8, global_batch_size_end=8)
    assert [*find_progress_problems(Progress(epoch=U16 + 1, step=0), config)][:2] == [
        BrokenRule("progress.epoch", f"{U16 + 1} {FITS}", f"0 to {U16}"),
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
    assert problem == BrokenRule("metadata.vocab_size", f"{U64 + 1} {FITS}", f"0 to {U64}")
    assert not list(find_version_problems("")), "any version will do"
    (problem,) = find_version_problems("\ud800")
    assert problem == BrokenRule("client_version", "is not Unicode text", "text that UTF-8 can write")
    many, wrong = find_bootstrap_problems(["/ip4/192.0.2.1/tcp/1"] * MAX_BOOTSTRAP + ["nowhere"])
    assert (many.key, many.what) == ("bootstrap", f"{MAX_BOOTSTRAP + 1} addresses")
    assert (wrong.key, wrong.what) == ("bootstrap", "'nowhere' is no multiaddr or too long")
    assert many.right == wrong.right
    assert many.right.startswith(f"at most {MAX_BOOTSTRAP} multiaddrs")
