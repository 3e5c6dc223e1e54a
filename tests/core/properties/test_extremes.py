"""What the checks accept, the record can hold: at the start, at the end, and after every pause."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.runs import Run, build_run
from kits.tier import draw

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.config_checks import check_config
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.genesis import create_run
from psyche.core.state.limits import MAX_DATA_INDEX, MAX_EPOCH_ROUNDS, MAX_HEIGHT, MAX_TIME_S
from psyche.core.state.messages import Join, Recover, SetRates
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
    RunState,
    ScheduleKind,
    StopReason,
)
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_keys, build_model

U16, U32, U64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
LATEST = (1 << 62) - 1


def edge(*values: int) -> st.SearchStrategy[int]:
    return st.sampled_from(values)


TIMES = edge(1, 30, MAX_TIME_S, MAX_TIME_S + 1, U64)
CONFIGS = st.fixed_dictionaries(
    {
        "warmup_time": TIMES, "cooldown_time": TIMES, "max_round_train_time": TIMES, "round_witness_time": TIMES,
        "epoch_time": st.just(0) | TIMES, "total_steps": edge(2, 1_000, U32), "rounds_per_epoch": edge(1, 2, U32),
        "global_batch_size_end": edge(12, U16), "global_batch_size_warmup_tokens": edge(0, 500, U64),
        "min_stake": edge(0, U64), "entropy_delay": edge(0, 255), "straggler_percent": edge(0, 150, U16),
        "evict_after": edge(1, 255), "late_limit": edge(1, 255), "waiting_for_members_extra_time": edge(1, 255),
    }
)  # fmt: skip
FLOATS = st.sampled_from([0.0, 1e-50, 0.5, 0.999_999_999_999, 1.0, 3e38, 1e39, 1e300])
OPTIONAL = st.none() | FLOATS
TEXTS = st.sampled_from(["", "org/model", "x" * 128, "é" * 64, "a\0b", "\ud800"])
SOURCES = st.builds(Checkpoint, st.sampled_from(CheckpointKind), TEXTS, st.none() | TEXTS)
MODELS = st.builds(
    Model,
    max_seq_len=edge(1, 16, U32),
    checkpoint=st.just(Checkpoint(CheckpointKind.HUB, "org/model")) | SOURCES,
    data_location=st.builds(
        DataLocation, st.sampled_from(DataLocationKind), TEXTS,
        st.builds(HttpLocation, st.sampled_from(HttpLocationKind), TEXTS, TEXTS, num_files=edge(0, 1)),
    ),
    lr_schedule=st.builds(LrSchedule, st.sampled_from(ScheduleKind), FLOATS, FLOATS, edge(0, U32), edge(0, U32)),
    optimizer=st.builds(
        Optimizer, st.sampled_from(OptimizerKind), OPTIONAL, OPTIONAL, FLOATS, edge(0, 4, U16), edge(0, 16),
        betas=st.tuples(FLOATS, FLOATS), eps=FLOATS,
    ),
)  # fmt: skip
STARTS = st.builds(Progress, edge(0, U16 - 1), edge(1, 999, U32 - 1), edge(0, 1 << 62, MAX_DATA_INDEX, U64))


def create(config: Config, model: Model, progress: Progress | None = None) -> Run:
    state = create_run(config, model, "run", build_hash(1), Metadata(), "v", START_UNIX, progress=progress)
    return Run(state)


@settings(max_examples=draw(300), deadline=None)
@given(CONFIGS, MODELS, STARTS)
def test_a_configuration_that_is_accepted_fits_the_record_and_is_accepted_again(
    values: dict[str, int], model: Model, progress: Progress
) -> None:
    try:
        run = create(build_config(**values), model, progress)
    except ConfigRefused:
        return
    state = decode_state(encode_state(run.state))
    assert state == run.state
    check_config(state.config, state.model)


@settings(max_examples=draw(60), deadline=None)
@given(CONFIGS, STARTS, edge(START_UNIX, LATEST), edge(0, U32, LATEST))
def test_no_reachable_extreme_stops_a_run(values: dict[str, int], progress: Progress, now: int, wait_s: int) -> None:
    values = values | {"min_stake": 0}
    try:
        run = create(build_config(**values), build_model(), progress)
    except ConfigRefused:
        return
    run.apply(SetRates(earning=U64, slashing=U64))
    for slot in range(3):
        run.now = now
        if run.state.run_state is not RunState.WAITING_FOR_MEMBERS:
            break
        run.apply(Join(build_keys(slot)[1]), build_keys(slot)[0])
    run.now += wait_s
    for _ in range(40):
        run.now += 300
        run.settle()
        assert decode_state(encode_state(run.state)) == run.state
        if run.state.run_state is RunState.WARMUP:
            run.show(*(m for m in run.get_members() if not run.state.clients[m].flags))
        elif run.state.in_round:
            run.witness_all()
        run.apply(Recover(wait_s))
        assert decode_state(encode_state(run.state)) == run.state


def test_a_start_sample_leaves_room_for_the_whole_run() -> None:
    config = build_config(total_steps=11)  # 12 samples each: 120 from step 1 on
    last = MAX_DATA_INDEX - 120
    assert create(config, build_model(), Progress(epoch_start_data_index=last)).state.progress.step == 1
    with pytest.raises(ConfigRefused, match=f"epoch_start_data_index: .*120 samples.*0 to {last}"):
        create(config, build_model(), Progress(epoch_start_data_index=last + 1))
    assert create(config, build_model(), Progress(step=11, epoch_start_data_index=MAX_DATA_INDEX))
    with pytest.raises(ConfigRefused, match="epoch_start_data_index"):
        create(config, build_model(), Progress(epoch_start_data_index=-1))


def test_a_run_ends_at_its_last_sample_and_goes_no_further() -> None:
    start = MAX_DATA_INDEX - 2 * 12
    run = create(build_config(total_steps=3), build_model(), Progress(epoch_start_data_index=start))
    run.join(0, 1)
    run.warm_up().finish_epoch()
    assert run.state.run_state is RunState.FINISHED
    assert run.state.progress.epoch_start_data_index == MAX_DATA_INDEX


def test_an_epoch_ends_at_the_last_height_that_can_be_counted() -> None:
    run = build_run(3, rounds_per_epoch=0, epoch_time=1 << 31).warm_up()
    run.state.current.height = MAX_EPOCH_ROUNDS - 1
    run.state.epoch.rounds_head = run.state.current.height % 4
    run.state.rounds.insert(0, run.state.rounds.pop())
    run.state.rounds = [run.state.rounds[(i + 2) % 4] for i in range(4)]
    assert run.state.current.height == MAX_EPOCH_ROUNDS - 1
    run.run_round()
    assert run.state.epoch.stop_reason is StopReason.EPOCH_LENGTH
    run.state.current.height = MAX_HEIGHT
    run.state.epoch.drain_from_height = MAX_HEIGHT
    run.state.rounds[MAX_HEIGHT % 4] = run.state.current
    run.state.epoch.rounds_head = MAX_HEIGHT % 4
    run.run_round()
    assert run.state.run_state is RunState.COOLDOWN
