"""S10: checkpoints; K2: recovery; genesis."""

from collections.abc import Callable
from typing import Any

import pytest
from kits.runs import build_cooldown, build_run, expect_refusal

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.errors import (
    ConfigRefused,
    InvalidCheckpoint,
    UnknownMember,
)
from psyche.core.state.genesis import create_run
from psyche.core.state.limits import NAME_BYTES, RUN_ID_BYTES
from psyche.core.state.messages import Pause
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    ClientState,
    Coordinator,
    Mark,
    Metadata,
    Progress,
    RunState,
)
from psyche.testing.builders import START_UNIX, build_config, build_hash, build_model

HUB = Checkpoint(CheckpointKind.HUB, "org/model", "main")
GCS = Checkpoint(CheckpointKind.GCS, "bucket", "prefix")
LOCAL = Checkpoint(CheckpointKind.LOCAL, "weights")


# --- S10


def test_s10_the_first_becomes_the_source_and_three_more_are_kept() -> None:
    run = build_cooldown()
    run.name_source(HUB, 1)
    assert run.state.model.checkpoint == HUB
    assert run.state.model.checkpoint is not HUB
    mark = run.state.checkpoint
    assert (mark.digest, mark.step, mark.uploader) == (run.state.certified.digest, 2, 1)
    others = [GCS, LOCAL, Checkpoint(CheckpointKind.HUB, "org/copy")]
    for number, source in enumerate(others):
        run.name_source(source, number)
    assert run.state.model.checkpoint == HUB
    assert run.state.model.extra_checkpoints == others
    with expect_refusal(run.state, InvalidCheckpoint, "S10"):
        run.name_source(Checkpoint(CheckpointKind.HUB, "org/fifth"))


def test_s10_a_later_certified_replaces_all_sources() -> None:
    run = build_cooldown()
    run.name_source(HUB)
    run.name_source(GCS)
    run.wait(5)
    run.rejoin()
    run.warm_up()
    list(run.run_rounds())
    run.name_source(LOCAL)
    assert run.state.model.checkpoint == LOCAL
    assert [c.kind for c in run.state.model.extra_checkpoints] == [CheckpointKind.EPHEMERAL] * 3


BAD_SOURCES = [
    Checkpoint(CheckpointKind.P2P, "org/model"),
    Checkpoint(CheckpointKind.P2P_GCS, "bucket"),
    Checkpoint(CheckpointKind.DUMMY, "x"),
    Checkpoint(),
    Checkpoint(CheckpointKind.HUB, ""),
    Checkpoint(CheckpointKind.HUB, "x" * 65),
    Checkpoint(CheckpointKind.HUB, "x", "y" * 65),
    Checkpoint(CheckpointKind.LOCAL, "x" * 129),
    Checkpoint(CheckpointKind.LOCAL, "x", "main"),
    Checkpoint(CheckpointKind.GCS, "x\0"),
    Checkpoint(CheckpointKind.GCS, "x", "\0"),
]


@pytest.mark.parametrize(
    "source", BAD_SOURCES, ids=lambda s: f"{s.kind.name} {s.name[:9]!a} {(s.revision or '')[:3]!a}"
)
def test_s10_only_lasting_sources_that_fit_may_stand_on_record(source: Checkpoint) -> None:
    run = build_cooldown()
    with expect_refusal(run.state, InvalidCheckpoint):
        run.name_source(source)


def test_s10_any_member_may_name_it_but_no_stranger_and_no_ejected_one() -> None:
    run = build_cooldown()
    run.join(9)
    with expect_refusal(run.state, UnknownMember, "S10"):
        run.name_source(HUB, 9)
    run.eject(1, height=0)
    with expect_refusal(run.state, UnknownMember, "S10"):
        run.name_source(HUB, 1)
    run.state.clients[2].state = ClientState.WITHDRAWN
    run.name_source(HUB, 2)


def test_b20_any_honest_members_checkpoint_with_the_certified_digest_is_accepted_late_too() -> None:
    run = build_cooldown()
    run.wait(5)
    assert run.state.run_state is RunState.WAITING_FOR_MEMBERS
    run.name_source(HUB, 2)
    run.rejoin()
    run.warm_up()
    run.name_source(GCS, 0)
    run.apply(Pause())
    run.finish_epoch()
    assert run.state.run_state is RunState.PAUSED
    run.name_source(LOCAL, 1)
    assert run.state.model.checkpoint == LOCAL


# --- K2


def test_k2_a_restart_is_no_time_out() -> None:
    run = build_run(3, max_round_train_time=60).warm_up()
    run.wait(10)
    before = run.state.current.started_unix
    run.recover(5_000)
    assert run.state.current.started_unix == before + 5_000
    assert run.settle() == 0
    assert run.state.state_start_unix == run.now - 10
    assert run.wait(49) == 0
    assert run.wait(1) == 1


def test_k2_a_clock_that_went_back_moves_nothing() -> None:
    run = build_run(1, warmup_time=600)
    run.form()
    run.now += 20
    before = encode_state(run.state)
    run.recover(-10)
    assert encode_state(run.state) == before


def test_k2_at_least_fifteen_seconds_remain_for_reconnecting() -> None:
    run = build_run(3, max_round_train_time=60, epoch_time=1_000).warm_up()
    run.wait(58)
    start = run.state.epoch.start_timestamp
    run.recover(100)
    assert run.state.epoch.start_timestamp == start + 113
    assert run.wait(14) == 0
    assert run.wait(1) == 1


# --- how a run comes to be


def create(**changes: Any) -> Coordinator:
    values: dict[str, Any] = {
        "config": build_config(),
        "model": build_model(),
        "run_id": "run",
        "run_uid": build_hash("run"),
        "metadata": Metadata(name="A run"),
        "client_version": "1",
        "now": START_UNIX,
        **changes,
    }
    return create_run(**values)


def test_a_new_run_waits_for_members() -> None:
    state = create()
    assert state.run_state is RunState.WAITING_FOR_MEMBERS
    assert (state.state_start_unix, state.nonce, state.registry.next_active) == (START_UNIX, 1, 1)
    assert (state.progress.epoch, state.progress.step) == (0, 1)
    assert decode_state(encode_state(state)) == state


def test_a_run_may_begin_at_a_later_step() -> None:
    state = create(progress=Progress(epoch=3, step=50, epoch_start_data_index=600))
    assert state.progress == Progress(3, 50, 600)
    assert create(progress=Progress(step=1_000)).run_state is RunState.FINISHED


def test_s11_a_run_may_begin_with_the_digest_of_its_first_weights_on_record() -> None:
    first = build_hash("first")
    state = create(first_weights=first, progress=Progress(epoch=3, step=50, epoch_start_data_index=600))
    assert state.certified == state.checkpoint == Mark(first, epoch=3, step=50, data_index=600)
    assert state.certified is not state.checkpoint
    assert decode_state(encode_state(state)) == state
    assert create().certified == create().checkpoint == Mark()


def test_names_and_numbers_may_be_as_large_as_their_places() -> None:
    metadata = Metadata(name="n" * NAME_BYTES, num_parameters=(1 << 64) - 1, vocab_size=0)
    assert create(run_id="r" * RUN_ID_BYTES, metadata=metadata).metadata == metadata


def test_a_new_run_does_not_share_its_settings() -> None:
    config, model = build_config(), build_model()
    state = create(config=config, model=model)
    config.min_clients = 9
    model.checkpoint.name = "other"
    assert state.config.min_clients == 1
    assert state.model.checkpoint.name == "test"


def test_settings_stand_as_they_are_on_record() -> None:
    model = build_model()
    model.optimizer.compression_decay = 0.999
    assert create(model=model).model.optimizer.compression_decay != 0.999


BAD_RUNS: list[tuple[str, Callable[[], Coordinator]]] = [
    ("run_id", lambda: create(run_id="")),
    ("run_id", lambda: create(run_id="x" * 33)),
    ("run_id", lambda: create(run_id="a\0")),
    ("run_uid", lambda: create(run_uid=b"x")),
    ("run_uid", lambda: create(run_uid=ZERO32)),
    ("first_weights", lambda: create(first_weights=b"x")),
    ("metadata.name", lambda: create(metadata=Metadata(name="x" * 65))),
    ("metadata.description", lambda: create(metadata=Metadata(description="x" * 281))),
    ("metadata.vocab_size", lambda: create(metadata=Metadata(vocab_size=1 << 64))),
    ("metadata.num_parameters", lambda: create(metadata=Metadata(num_parameters=-1))),
    ("metadata.num_parameters", lambda: create(metadata=Metadata(num_parameters=1 << 64))),
    ("client_version", lambda: create(client_version="x" * 97)),
    ("progress.step", lambda: create(progress=Progress(step=0))),
    ("progress.epoch", lambda: create(progress=Progress(epoch=65_536))),
    ("progress.epoch", lambda: create(progress=Progress(epoch=-1))),
    ("progress.epoch_start_data_index", lambda: create(progress=Progress(epoch_start_data_index=-1))),
    ("config.total_steps", lambda: create(config=build_config(total_steps=0))),
    ("model.LLM.max_seq_len", lambda: create(model=build_model(max_seq_len=0))),
]


@pytest.mark.parametrize(("key", "make"), BAD_RUNS)
def test_a_run_that_cannot_run_is_refused_by_key(key: str, make: Callable[[], Coordinator]) -> None:
    with pytest.raises(ConfigRefused, match=key):
        make()
