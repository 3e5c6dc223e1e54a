"""P9: what the owner changes of a run that exists, when, and what follows from it."""

from dataclasses import replace

import pytest
from kits.runs import build_paused_run, expect_refusal

from psyche.core.encoding.account import decode_state, encode_state, get_config_preimage
from psyche.core.state.errors import CannotUpdate, ConfigRefused
from psyche.core.state.limits import MAX_DATA_INDEX
from psyche.core.state.messages import Resume, Update, UpdateClientVersion
from psyche.core.state.state import (
    Checkpoint,
    CheckpointKind,
    LrSchedule,
    Mark,
    Metadata,
    Progress,
    RunState,
)
from psyche.testing.builders import build_config, build_hash, build_model

HUB = Checkpoint(CheckpointKind.HUB, "org/other", "main")


def test_p9_settings_of_a_paused_run_change_and_the_weights_stay_certified() -> None:
    run = build_paused_run()
    certified, before = replace(run.state.certified), get_config_preimage(run.state)
    run.apply(Update(config=build_config(rounds_per_epoch=5)))
    assert run.state.config.rounds_per_epoch == 5
    assert (run.state.certified, run.state.checkpoint.digest != bytes(32)) == (certified, True)
    assert get_config_preimage(run.state) != before, "config_hash tells old results from new ones"
    run.resume()
    assert run.state.current.step == certified.step
    assert decode_state(encode_state(run.state)) == run.state


def test_p9_the_sign_of_a_zero_is_a_change_since_it_is_another_byte() -> None:
    run = build_paused_run()
    run.apply(Update(model=replace(run.state.model, lr_schedule=LrSchedule(base_lr=1.0, warmup_init_lr=0.0))))
    before, nonce = encode_state(run.state), run.state.nonce
    run.apply(Update(model=replace(run.state.model, lr_schedule=LrSchedule(base_lr=1.0, warmup_init_lr=-0.0))))
    assert (encode_state(run.state) != before, run.state.nonce) == (True, nonce + 1)


def test_p9_new_weights_begin_like_a_first_epoch() -> None:
    run = build_paused_run()
    step, epoch = run.state.progress.step, run.state.progress.epoch
    run.apply(Update(model=build_model(checkpoint=HUB)))
    assert (run.state.certified, run.state.checkpoint, run.state.model.checkpoint) == (Mark(), Mark(), HUB)
    assert decode_state(encode_state(run.state)) == run.state
    run.apply(Resume())
    run.rejoin()
    run.form()
    run.show(0, 1, 2, digest=build_hash("other weights"))
    run.settle()
    assert run.state.in_round
    assert run.state.certified.digest == run.state.checkpoint.digest == build_hash("other weights")
    assert (run.state.certified.step, run.state.certified.epoch, run.state.current.step) == (step, epoch, step)
    run.finish_epoch()
    assert run.state.progress.step == step + 2


@pytest.mark.parametrize(("step", "sample"), [(40, 24), (3, 7), (1, 0)])
def test_p9_another_step_or_sample_is_where_the_run_goes_on(step: int, sample: int) -> None:
    run = build_paused_run()
    run.state.epoch.warmup_failures = 1
    run.apply(Update(progress=Progress(run.state.progress.epoch, step, sample)))
    assert (run.state.certified, run.state.checkpoint, run.state.epoch.warmup_failures) == (Mark(), Mark(), 0)
    run.resume()
    assert (run.state.current.step, run.state.current.data_index) == (step, sample)
    run.finish_epoch()
    assert (run.state.progress.step, run.state.progress.epoch_start_data_index) == (step + 2, sample + 24)


def test_p9_the_epoch_number_stays_but_for_a_run_that_is_new() -> None:
    run = build_paused_run()
    for epoch in (0, 2):
        with expect_refusal(run.state, ConfigRefused, "progress.epoch"):
            run.apply(Update(progress=replace(run.state.progress, epoch=epoch)))
    run.state.run_state = RunState.UNINITIALIZED
    run.apply(Update(progress=replace(run.state.progress, epoch=9)))
    assert run.state.progress.epoch == 9


MOMENTS = [state for state in RunState if state not in (RunState.UNINITIALIZED, RunState.PAUSED)]


@pytest.mark.parametrize("moment", MOMENTS)
def test_p9_while_the_run_goes_on_only_metadata_and_addresses_change(moment: RunState) -> None:
    run = build_paused_run()
    run.state.run_state = moment
    state, before = run.state, get_config_preimage(run.state)
    parts = {"config": state.config, "model": state.model, "progress": state.progress, "first_weights": build_hash(1)}
    for changes in ({name: part} for name, part in parts.items()):
        with expect_refusal(state, CannotUpdate, "P9"):
            run.apply(Update(metadata=Metadata("x"), **changes))
    with expect_refusal(state, CannotUpdate, "P9"):
        run.apply(UpdateClientVersion("v2"))
    nonce = state.nonce
    run.apply(Update(metadata=Metadata("new", "text", 3, 4), bootstrap=("/ip4/192.0.2.1/tcp/1",)))
    assert (state.metadata.description, state.bootstrap) == ("text", ["/ip4/192.0.2.1/tcp/1"])
    assert state.nonce == nonce + 1
    assert get_config_preimage(state) == before
    run.apply(Update(bootstrap=()))
    assert state.bootstrap == []


def test_p9_what_would_come_out_is_checked_as_a_whole() -> None:
    run = build_paused_run()
    refused: list[tuple[dict[str, object], str]] = [
        ({"config": build_config(min_clients=0)}, "config.min_clients"),
        ({"model": build_model(max_seq_len=0)}, "model.LLM.max_seq_len"),
        ({"progress": Progress(1, 0)}, "progress.step"),
        ({"progress": Progress(1, 1, MAX_DATA_INDEX)}, "progress.epoch_start_data_index"),
        ({"metadata": Metadata("n" * 65)}, "metadata.name"),
        ({"metadata": Metadata(vocab_size=-1)}, "metadata.vocab_size"),
        ({"bootstrap": ("host:1",)}, "bootstrap"),
    ]
    for changes, words in refused:
        with expect_refusal(run.state, ConfigRefused, words):
            run.apply(Update(**changes))  # type: ignore[arg-type]
    run.state.progress.epoch_start_data_index = MAX_DATA_INDEX - 20_000
    with expect_refusal(run.state, ConfigRefused, "progress.epoch_start_data_index"):
        run.apply(Update(config=build_config(total_steps=5_000)))


def test_s11_the_digest_of_the_first_weights_goes_on_record_with_the_step_and_sample_of_the_updated_run() -> None:
    run, first = build_paused_run(), build_hash("first")
    progress = replace(run.state.progress, step=9, epoch_start_data_index=70)
    assert run.apply(Update(progress=progress, first_weights=first))
    assert run.state.certified == run.state.checkpoint == Mark(first, progress.epoch, step=9, data_index=70)
    assert not run.apply(Update(first_weights=first)), "it is on record already"
    run.resume()
    assert run.state.certified.digest == first, "members have shown it"


def test_s11_a_run_that_has_trained_goes_on_from_its_own_weights() -> None:
    run = build_paused_run()
    certified = replace(run.state.certified)
    with expect_refusal(run.state, ConfigRefused, "S11"):
        run.apply(Update(first_weights=build_hash("first")))
    for digest in (bytes(32), bytes(31)):
        with expect_refusal(run.state, ConfigRefused, "first_weights"):
            run.apply(Update(first_weights=digest))
    assert not run.apply(Update(first_weights=certified.digest))
    assert run.state.certified == certified
    assert run.apply(Update(model=build_model(checkpoint=HUB), first_weights=build_hash("first")))


def test_p9_an_update_made_from_an_older_record_is_refused() -> None:
    run = build_paused_run()
    read = run.state.nonce
    owners = Update(model=replace(run.state.model, checkpoint=HUB), nonce=read)
    source = Checkpoint(CheckpointKind.HUB, "org/trained", "main")
    certified = run.state.certified.digest
    run.name_source(source)
    with expect_refusal(run.state, CannotUpdate, "P9"):
        run.apply(owners)
    assert run.state.certified.digest == certified
    run.apply(Update(config=build_config(rounds_per_epoch=5), nonce=read + 1))
    assert run.state.config.rounds_per_epoch == 5


def test_p9_the_version_changes_while_the_run_is_paused() -> None:
    run = build_paused_run()
    nonce = run.state.nonce
    run.apply(UpdateClientVersion("v2"))
    assert (run.state.client_version, run.state.nonce) == ("v2", nonce + 1)
    with expect_refusal(run.state, ConfigRefused, "client_version"):
        run.apply(UpdateClientVersion("v" * 97))
