"""What an owner changes of a run on record: found key by key, checked before it is sent, with the way out (P9)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kits.runs import build_paused_run, build_run

from psyche.config.load import LoadedRun
from psyche.config.update import (
    build_extension,
    build_update,
    check_update,
    compute_restart,
    describe_schedule,
    describe_update,
    find_changes,
    get_schedule_end,
    is_first_start,
    is_other_start,
)
from psyche.core.committee.schedule import compute_batch_size, compute_learning_rate
from psyche.core.state.errors import ConfigRefused
from psyche.core.state.messages import Pause, Update
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    Coordinator,
    LrSchedule,
    Mark,
    Metadata,
    RunState,
    ScheduleKind,
)
from psyche.errors import ConfigError
from psyche.testing.builders import build_config, build_hash, build_model, build_state

COSINE = LrSchedule(ScheduleKind.COSINE, base_lr=2e-3, warmup_steps=10, total_steps=1_000, final_lr=2e-4)
LINEAR = replace(COSINE, kind=ScheduleKind.LINEAR)
STABLE = LrSchedule(
    ScheduleKind.WARMUP_STABLE_DECAY, base_lr=2e-3, warmup_steps=10, stable_steps=500, cosine_decay_steps=400,
    cosine_decay_final_lr=1e-4, linear_decay_steps=90, linear_decay_final_lr=1e-5,
)  # fmt: skip


def build_file(state: Coordinator, **changes: Any) -> LoadedRun:
    """A run.toml with the settings on record, but for `changes`."""
    values: dict[str, Any] = {
        "run_id": state.run_id,
        "config": state.config,
        "model": state.model,
        "metadata": state.metadata,
        "bootstrap": tuple(state.bootstrap),
    }
    return LoadedRun(path=Path("/my/run.toml"), warnings=(), **(values | changes))


def test_a_file_with_the_settings_on_record_changes_nothing() -> None:
    state = build_paused_run().state
    update = build_update(state, build_file(state))
    assert update == Update()
    assert list(find_changes(state, update)) == []


def test_changes_are_named_by_key_with_both_values() -> None:
    state = build_paused_run().state
    model = build_model(lr_schedule=COSINE)
    model.optimizer = replace(model.optimizer, clip_grad_norm=0.5, compression_topk=8)
    file = build_file(
        state, config=replace(state.config, total_steps=50, overlap=False), model=model,
        metadata=Metadata("new", "a text"), bootstrap=("/ip4/192.0.2.1/tcp/1",),
    )  # fmt: skip
    found = {change.key: change[1:] for change in find_changes(state, build_update(state, file))}
    assert found == {
        "config.total_steps": ("1000", "50"),
        "config.overlap": ("true", "false"),
        "model.LLM.lr_schedule.kind": ("Constant", "Cosine"),
        "model.LLM.lr_schedule.base_lr": ("0.001", "0.002"),
        "model.LLM.lr_schedule.warmup_steps": ("0", "10"),
        "model.LLM.lr_schedule.total_steps": ("0", "1000"),
        "model.LLM.lr_schedule.final_lr": ("0", "0.0002"),
        "model.LLM.optimizer.clip_grad_norm": ("none", "0.5"),
        "model.LLM.optimizer.compression_topk": ("4", "8"),
        "metadata.name": ('"test"', '"new"'),
        "metadata.description": ('""', '"a text"'),
        "bootstrap": ("[]", "['/ip4/192.0.2.1/tcp/1']"),
    }


def test_numbers_that_differ_never_look_alike() -> None:
    state = build_paused_run().state
    rate = 0.001 + 1e-12
    update = Update(model=replace(state.model, lr_schedule=replace(state.model.lr_schedule, base_lr=rate)))
    ((_, before, after),) = find_changes(state, update)
    assert (before, after) == ("0.001", repr(rate))


def test_an_update_keeps_the_weights_and_what_members_named() -> None:
    run = build_paused_run()
    run.state.model.checkpoint = Checkpoint(CheckpointKind.LOCAL, "named/by/a/member")
    run.state.checkpoint = replace(run.state.certified, uploader=1)
    certified = replace(run.state.certified)
    update = build_update(run.state, build_file(run.state, model=build_model(max_seq_len=8)))
    assert [change.key for change in find_changes(run.state, update)] == ["model.LLM.max_seq_len"]
    run.apply(update)
    assert (run.state.model.max_seq_len, run.state.certified) == (8, certified)
    assert run.state.model.checkpoint.name == "named/by/a/member"


def test_a_restart_keeps_the_epoch_and_begins_after_the_samples_of_the_steps_before() -> None:
    config = build_config(
        total_steps=5_000_000_000 >> 3, global_batch_size_start=8, global_batch_size_end=16,
        global_batch_size_warmup_tokens=64 * 100,
    )  # fmt: skip
    model = build_model(max_seq_len=64)
    state = build_state(config, model)
    state.progress.epoch = 3
    samples, firsts = 0, [0]
    for _ in range(30):
        samples += compute_batch_size(config, samples * 64)
        firsts.append(samples)
    found = [compute_restart(state, step, config, model) for step in range(1, 32)]
    assert [one.epoch_start_data_index for one in found] == firsts
    assert {one.epoch for one in found} == {3}
    far = compute_restart(state, 500_000_000, config, model).epoch_start_data_index
    assert far == firsts[-1] + (500_000_000 - 31) * 16


def test_a_restart_from_a_step_on_record_takes_its_sample_and_gives_the_certified_weights_up() -> None:
    run = build_paused_run()
    mark = run.state.certified
    progress = compute_restart(run.state, mark.step, run.state.config, run.state.model)
    assert progress.epoch_start_data_index == mark.data_index
    again = Update(progress=compute_restart(run.state, 1, run.state.config, run.state.model))
    assert {change.key for change in find_changes(run.state, again)} <= {
        "progress.step",
        "progress.epoch_start_data_index",
    }
    assert any(
        "next epoch starts from the weights of Dummy 'test'" in note for note in describe_update(run.state, again)
    )
    check_update(run.state, again)
    run.apply(again)
    assert (run.state.progress.step, run.state.certified) == (1, Mark())


def test_other_first_weights_are_for_a_run_that_has_not_trained() -> None:
    other = build_model(checkpoint=Checkpoint(CheckpointKind.DUMMY, "other"))
    trained = build_paused_run().state
    with pytest.raises(
        ConfigError, match=r"run\.toml: model\.LLM\.checkpoint: the run has trained up to step 2 .* new run"
    ):
        build_update(trained, build_file(trained, model=other))
    new = build_state()
    (change,) = find_changes(new, build_update(new, build_file(new, model=other)))
    assert change == ("model.LLM.checkpoint.name", '"test"', '"other"')


def test_what_the_digest_on_record_depends_on_stays() -> None:
    """S2: in full-value mode a digest covers no values, so nobody could show the certified one."""
    state = build_paused_run().state
    model = build_model()
    model.optimizer.quantize_1bit = False
    with pytest.raises(ConfigError, match="quantize_1bit cannot change"):
        build_update(state, build_file(state, model=model))


def test_a_file_of_another_run_is_refused() -> None:
    state = build_paused_run().state
    with pytest.raises(ConfigError, match="describes the run 'mine', but this run is 'test-run'"):
        build_update(state, build_file(state, run_id="mine"))


def test_a_run_that_goes_on_is_told_to_pause_first_and_metadata_may_change_even_so() -> None:
    run = build_run(3).warm_up()
    longer = build_extension(run.state, 2_000)
    with pytest.raises(ConfigError, match=r"`psyche run pause`.* says paused.* `psyche run resume`"):
        check_update(run.state, longer)
    run.apply(Pause())
    with pytest.raises(ConfigError, match="pauses when this epoch has ended; then run this command again"):
        check_update(run.state, longer)
    check_update(run.state, build_update(run.state, build_file(run.state, metadata=Metadata("new"))))
    run.finish_epoch()
    before = replace(run.state.config)
    check_update(run.state, longer)
    assert run.state.config == before, "a check changes nothing"


def test_a_finished_run_is_told_where_a_new_one_begins() -> None:
    state = build_paused_run().state
    state.run_state, state.progress.step, state.progress.epoch_start_data_index = RunState.FINISHED, 161, 1_280
    with pytest.raises(ConfigError, match=r"a finished run .* step = 161 and epoch_start_data_index = 1280"):
        check_update(state, build_extension(state, 2_000))


def test_what_breaks_a_rule_is_refused_before_it_is_sent() -> None:
    state = build_paused_run().state
    with pytest.raises(ConfigRefused, match=r"config\.min_clients"):
        check_update(state, Update(config=build_config(min_clients=0)))


def test_an_end_before_the_step_that_is_reached_is_told() -> None:
    state = build_paused_run().state
    update = Update(config=replace(state.config, total_steps=state.progress.step))
    assert any("it ends as soon as it goes on" in note for note in describe_update(state, update))
    later = Update(config=replace(state.config, total_steps=state.progress.step + 1))
    assert not any("ends as soon" in note for note in describe_update(state, later))


def test_an_extension_only_goes_forward() -> None:
    state = build_paused_run().state
    for total_steps in (1_000, 5):
        with pytest.raises(ConfigError, match="ends at step 1000 already"):
            build_extension(state, total_steps)
    (change,) = find_changes(state, build_extension(state, 1_001, stretch=True))
    assert change == ("config.total_steps", "1000", "1001"), "a constant schedule has no end to move"


@pytest.mark.parametrize("schedule", [COSINE, LINEAR, STABLE], ids=lambda schedule: schedule.kind.name)
def test_a_stretched_schedule_ends_as_much_later_as_the_run_and_otherwise_one_is_told(schedule: LrSchedule) -> None:
    state = build_paused_run().state
    state.model.lr_schedule, state.progress.step = schedule, 800
    plain = build_extension(state, 1_500)
    told = describe_schedule(state, plain)
    assert told is not None
    assert "at step 1000 and stays there up to step 1500; `extend --stretch-schedule`" in told
    stretched = build_extension(state, 1_500, stretch=True)
    assert stretched.model is not None
    assert get_schedule_end(stretched.model.lr_schedule) == 1_500
    assert replace(stretched.model, lr_schedule=schedule) == state.model, "all else stays"
    rates = [compute_learning_rate(s, 800) for s in (schedule, stretched.model.lr_schedule)]
    assert describe_schedule(state, stretched) == f"learning rate at step 800: {rates[0]:.6g} -> {rates[1]:.6g}"


def test_an_extension_begins_no_new_start() -> None:
    run = build_paused_run()
    run.state.model.lr_schedule = COSINE
    certified = replace(run.state.certified)
    assert certified != Mark(digest=build_hash("other"))
    run.apply(build_extension(run.state, 1_500, stretch=True))
    assert (run.state.certified, run.state.config.total_steps) == (certified, 1_500)


def test_s11_a_run_starts_from_other_weights_with_another_source_or_step_and_from_its_own_otherwise() -> None:
    state = build_paused_run().state
    other = build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "other"))
    assert is_other_start(state, Update(model=other))
    assert is_other_start(state, Update(progress=replace(state.progress, step=state.progress.step + 1)))
    for kept in (Update(), Update(model=replace(state.model, lr_schedule=COSINE)), Update(progress=state.progress)):
        assert not is_other_start(state, kept)


def test_s11_the_owner_says_what_a_run_begins_with_until_something_is_certified() -> None:
    state = build_paused_run().state
    state.certified = Mark(build_hash(1))
    assert not is_first_start(state)
    assert is_first_start(replace(state, run_state=RunState.UNINITIALIZED))
    assert is_first_start(replace(state, certified=Mark()))
    assert not is_first_start(replace(state, certified=Mark(), run_state=RunState.WARMUP))


def test_the_digest_of_other_first_weights_is_told() -> None:
    state = build_paused_run().state
    assert any("5a5a" in note for note in describe_update(state, Update(first_weights=b"\x5a" * 32)))


@pytest.mark.parametrize(
    ("revision", "is_other"),
    [(None, False), ("main", False), ("f" * 40, True), ("a" * 40, False)],
    ids=["none", "a branch", "another commit", "the same commit"],
)
def test_a_repository_without_its_commit_is_the_one_on_record(revision: str | None, is_other: bool) -> None:
    """S11: the commit that was read is on record; whoever wants another names it."""
    state = build_paused_run().state
    state.model.checkpoint = Checkpoint(CheckpointKind.HUB, "owner/name", "a" * 40)
    model = replace(state.model, checkpoint=Checkpoint(CheckpointKind.HUB, "owner/name", revision))
    state.certified = Mark(digest=build_hash("trained"), epoch=7, step=50)
    if is_other:
        with pytest.raises(ConfigError, match="other weights need a new run"):
            build_update(state, build_file(state, model=model))
    else:
        assert build_update(state, build_file(state, model=model)).model is None
