"""Certified weights in a place that all can reach, and that place on record (S10)."""

import errno
import os
from pathlib import Path

import pytest
from kits.bench import Bench, build_bench, go_to_last_drain
from kits.results import build_load_reply
from runtime_kit import KEYS, Place, answer_with, build_offer
from trio.testing import MockClock

from psyche.client.engine import actions as act
from psyche.client.engine.round_engine import RoundEngine
from psyche.client.runtime.app import check_client_settings
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights.loading import Source
from psyche.client.runtime.weights.sharing import (
    get_names_on_record,
    get_shared_name,
    remove_old_shared,
    share_snapshot,
)
from psyche.core.state.state import Checkpoint, CheckpointKind, ClientState, Coordinator, Mark, RunState
from psyche.errors import ConfigError
from psyche.modeling.snapshot import read_snapshot_info
from psyche.telemetry.types import WeightSource
from psyche.testing.builders import build_hash, build_model
from psyche.wire.crypto import blob_id_of

LIMIT_S = 3_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def clock() -> MockClock:
    """Jumps only after a real moment of rest: the disk is used through threads, which the clock cannot see."""
    return MockClock(autojump_threshold=0.02)


async def write_own(place: Place) -> tuple[bytes, Source]:
    digest = await place.write_snapshot()
    own = await place.loader.find_local(digest)
    assert own is not None
    return digest, own


# --- the folder


async def test_a_shared_snapshot_can_be_loaded_and_is_named_by_its_path_below_the_local_root(
    place: Place,
) -> None:
    digest, own = await write_own(place)
    path = place.root / "drive" / get_shared_name("run", 3, 40)
    assert share_snapshot(own.path, path, place.root) == Checkpoint(CheckpointKind.LOCAL, f"drive/{path.name}")
    info = read_snapshot_info(path)
    assert (info.digest, info.has_momentum) == (digest, False)
    assert path.name == "run-certified-00003-step-00000040"


async def test_momentum_is_nobody_elses(place: Place) -> None:
    _, own = await write_own(place)
    (own.path / "momentum.safetensors").write_bytes(b"private")
    share_snapshot(own.path, place.root / "shared", place.root)
    assert sorted(p.name for p in (place.root / "shared").iterdir()) == [
        "manifest.bin", "model", "snapshot.json", "tensors",
    ]  # fmt: skip


async def test_where_files_cannot_be_linked_they_are_copied(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another disk, or one without links."""

    def refuse(*_paths: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    digest, own = await write_own(place)
    monkeypatch.setattr(os, "link", refuse)
    share_snapshot(own.path, place.root / "shared", place.root)
    assert read_snapshot_info(place.root / "shared").digest == digest


async def test_a_snapshot_that_cannot_be_shared_leaves_nothing_half_written(place: Place) -> None:
    _, own = await write_own(place)
    (own.path / "manifest.bin").unlink()
    with pytest.raises(OSError, match=r"manifest\.bin"):
        share_snapshot(own.path, place.root / "shared" / "one", place.root)
    assert list((place.root / "shared").iterdir()) == []


async def test_what_is_there_already_stays(place: Place) -> None:
    """Two clients may share one folder."""
    _, own = await write_own(place)
    first = share_snapshot(own.path, place.root / "shared", place.root)
    (place.root / "shared" / "mark").touch()
    assert share_snapshot(own.path, place.root / "shared", place.root) == first
    assert (place.root / "shared" / "mark").exists()


def test_old_shared_snapshots_go_but_for_those_on_record(tmp_path: Path) -> None:
    names = [get_shared_name("run", epoch, epoch * 10) for epoch in range(5)]
    for name in (*names, get_shared_name("another", 0, 0), "run-step40"):
        (tmp_path / name).mkdir()
    remove_old_shared(tmp_path, "run", tmp_path, {names[1]})
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {names[1], names[4], get_shared_name("another", 0, 0), "run-step40"}


def test_the_places_on_record_are_the_local_ones() -> None:
    state = Coordinator(model=build_model(checkpoint=Checkpoint(CheckpointKind.LOCAL, "one")))
    state.model.extra_checkpoints[1] = Checkpoint(CheckpointKind.LOCAL, "two")
    state.model.extra_checkpoints[2] = Checkpoint(CheckpointKind.HUB, "three")
    assert get_names_on_record(state) == {"one", "two"}


@pytest.mark.parametrize("trouble", ["no folder", "elsewhere", "too long"])
def test_a_folder_that_others_could_not_find_is_refused_at_the_start(tmp_path: Path, trouble: str) -> None:
    settings = ClientSettings(
        run_id="run", data_dir=tmp_path, local_root=tmp_path / "root",
        checkpoint_dir=tmp_path / "root" / "drive", share_checkpoints=True,
    )  # fmt: skip
    check_client_settings(settings)
    reason = "--checkpoint-dir"
    if trouble == "no folder":
        settings.checkpoint_dir = None
    if trouble == "elsewhere":
        settings.checkpoint_dir, reason = tmp_path / "drive", "does not lie in --local-root"
    if trouble == "too long":
        settings.checkpoint_dir, reason = tmp_path / "root" / ("x" * 120), "more than 128 bytes"
    with pytest.raises(ConfigError, match=reason):
        check_client_settings(settings)


# --- when it is named


def build_sharing(*, share: bool = True, manual: tuple[type, ...] = ()) -> Bench:
    bench = build_bench(4, rounds_per_epoch=2, manual=manual)
    bench.engine = RoundEngine(bench.identities[0], share=share)
    return bench.start()


@pytest.mark.parametrize("share", [True, False])
def test_certified_weights_are_shared_once_in_cooldown_if_that_is_wanted(share: bool) -> None:
    """S10."""
    bench = build_sharing(share=share)
    go_to_last_drain(bench)
    assert bench.get_all(act.ShareCheckpoint) == []
    bench.run_round()
    assert bench.state.run_state is RunState.COOLDOWN
    bench.pass_time(bench.state.config.cooldown_time)
    mark = bench.state.certified
    assert bench.get_all(act.ShareCheckpoint) == [act.ShareCheckpoint(mark.epoch, mark.step, mark.digest)] * share


def test_weights_that_are_still_being_written_are_shared_when_they_are_on_disk() -> None:
    """S10: in Cooldown or later."""
    bench = build_sharing(manual=(act.WriteSnapshot,))
    go_to_last_drain(bench)
    bench.close(1, 2, 3)
    assert bench.state.run_state is RunState.COOLDOWN
    (asked,) = bench.get_all(act.WriteSnapshot)
    assert bench.get_all(act.ShareCheckpoint) == []
    bench.feed(act.SnapshotWritten(asked.epoch, asked.height, asked.digest, None))
    assert bench.get_all(act.ShareCheckpoint) == [], "it could not be written"
    bench.manual = ()
    written = bench.answer(asked)
    assert written is not None
    bench.feed(written)
    assert [a.digest for a in bench.get_all(act.ShareCheckpoint)] == [bench.state.certified.digest]


def test_a_client_that_was_started_again_goes_on_sharing_in_the_next_epoch() -> None:
    """S10: what it has loaded from its own snapshot, as long as nothing newer is certified."""
    bench = build_sharing()
    go_to_last_drain(bench)
    bench.run_round()
    bench.pass_time(bench.state.config.cooldown_time)
    mark = bench.state.certified
    bench.engine = RoundEngine(bench.identities[0], share=True)
    bench.actions.clear()
    bench.pass_time(1)
    bench.state.run_state = RunState.WARMUP
    bench.state.progress.epoch = mark.epoch + 1
    bench.feed(act.Loaded(mark.epoch + 1, mark.digest, WeightSource.PEERS, build_load_reply()))
    assert bench.get_all(act.ShareCheckpoint) == []
    bench.feed(act.Loaded(mark.epoch + 1, mark.digest, WeightSource.OWN_SNAPSHOT, build_load_reply()))
    assert bench.get_all(act.ShareCheckpoint) == [act.ShareCheckpoint(mark.epoch, mark.step, mark.digest)]


def test_the_ejected_name_nothing() -> None:
    """S10."""
    bench = build_sharing()
    go_to_last_drain(bench)
    bench.state.clients[0].state = ClientState.EJECTED
    bench.close(1, 2, 3)
    assert bench.state.run_state is RunState.COOLDOWN
    assert bench.engine.membership.kept == bench.state.certified.digest
    assert bench.get_all(act.ShareCheckpoint) == []


# --- loading from it


def name_on_record(place: Place, name: str, kind: CheckpointKind = CheckpointKind.LOCAL) -> None:
    place.state.model.checkpoint = Checkpoint(kind, name)
    place.state.checkpoint = Mark(digest=build_hash("certified"), uploader=0)


async def test_a_place_that_a_member_named_is_loaded_from_as_a_snapshot(place: Place) -> None:
    digest, own = await write_own(place)
    share_snapshot(own.path, place.root / "drive" / "one", place.root)
    name_on_record(place, "drive/one")
    source = place.loader.find_configured(place.state, digest, digest)
    assert source is not None
    assert (source.path, source.is_snapshot) == ((place.root / "drive" / "one").resolve(), True)
    name_on_record(place, "elsewhere")
    assert place.loader.find_configured(place.state, digest, digest) is None
    place.state.model.extra_checkpoints[0] = Checkpoint(CheckpointKind.LOCAL, "drive/one")
    assert place.loader.find_configured(place.state, digest, digest) == source, "up to three more are on record"


@pytest.mark.parametrize("name", ["../outside", "/absolute", "secrets", "link"])
async def test_of_a_place_that_a_member_named_nothing_is_read_but_a_snapshot_below_the_local_root(
    tmp_path: Path, name: str
) -> None:
    """B21: who names a folder with a config.json must not get it handed on to everybody."""
    place = Place(tmp_path / "root")
    digest, own = await write_own(place)
    outside = tmp_path / "outside"
    share_snapshot(own.path, outside, tmp_path)
    (place.root / "link").symlink_to(outside)
    (place.root / "secrets").mkdir()
    (place.root / "secrets" / "config.json").write_text("{}")
    name_on_record(place, str(outside) if name == "/absolute" else name)
    assert place.loader.find_configured(place.state, digest, digest) is None
    offer, digest = build_offer()
    place.network.blobs = {blob_id_of(b"w" * 32): b"w" * 32, blob_id_of(b"{}"): b"{}"}
    place.network.answers = {KEYS[1]: answer_with(offer)}
    await place.fetch(digest)
    assert place.log.told == [], "nor are its files compared with the run's"


# --- whole
