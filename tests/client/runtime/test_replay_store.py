"""The replay store on disk: what it keeps, what it drops, what it refuses (S7, I6)."""

import shutil
import threading
from pathlib import Path

import pytest
from runtime_kit import build_apply

from psyche.client.engine.actions import Apply
from psyche.client.runtime.weights.replay import ReplayStore
from psyche.errors import TrainerError, WireError

BODIES = (b"first body", b"second body")


def build_entry(epoch: int = 1, height: int = 2) -> Apply:
    return build_apply(height, (b"a" * 32, b"b" * 32), epoch=epoch, random_seed=2**63 + 5)


def list_sets(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.set"))


def test_a_set_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path / "replay", 1 << 20)
    store.write(build_entry(), BODIES)
    assert ReplayStore(tmp_path / "replay", 1 << 20).read(1, 2) == (build_entry(), BODIES)
    assert store.read(1, 3) is store.read(2, 2) is None


def test_a_set_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    store = ReplayStore(tmp_path, 1 << 20)
    store.write(build_entry(), BODIES)
    store.write(build_entry(), (b"other", b"bodies"))
    assert store.read(1, 2) == (build_entry(), (b"other", b"bodies"))
    assert [p.name for p in tmp_path.rglob("*.tmp")] == []


@pytest.mark.parametrize("damage", [b"", b"noise", b"\x80", None], ids=["empty", "noise", "a map", "cut"])
def test_a_damaged_file_is_named_and_not_believed(tmp_path: Path, damage: bytes | None) -> None:
    store = ReplayStore(tmp_path, 1 << 20)
    store.write(build_entry(), BODIES)
    (path,) = tmp_path.rglob("*.set")
    path.write_bytes(path.read_bytes()[:-5] if damage is None else damage)
    with pytest.raises(WireError, match=r"000002\.set: damaged"):
        store.read(1, 2)


def test_the_oldest_epochs_make_room_first(tmp_path: Path) -> None:
    """S7: kept on disk per epoch, quota with oldest epochs first."""
    body = (bytes(1000),)
    store = ReplayStore(tmp_path, 5_200)
    for epoch in (1, 2, 3):
        store.write(build_entry(epoch, 0), body)
    store.write(build_entry(3, 1), body)
    assert list_sets(tmp_path) == [
        "epoch-00001/000000.set", "epoch-00002/000000.set", "epoch-00003/000000.set", "epoch-00003/000001.set",
    ]  # fmt: skip
    store.write(build_entry(3, 2), body)
    assert list_sets(tmp_path)[0] == "epoch-00002/000000.set"
    store.write(build_entry(3, 3), body)
    assert list_sets(tmp_path) == [f"epoch-00003/00000{height}.set" for height in range(4)]
    assert store.get_size_bytes() <= 5_200


def test_the_running_epoch_alone_never_takes_more_than_the_quota(tmp_path: Path) -> None:
    """I6: a full store ends the hope of healing, not the training."""
    store = ReplayStore(tmp_path, 3_000)
    body = (bytes(1000),)
    store.write(build_entry(1, 0), body)
    store.write(build_entry(1, 1), body)
    with pytest.raises(TrainerError, match="quota of 3000 bytes is full"):
        store.write(build_entry(1, 2), body)
    assert store.get_size_bytes() <= 3_000
    assert store.read(1, 1) is not None


def test_only_the_running_epoch_and_the_last_one_are_kept(tmp_path: Path) -> None:
    """Older sets are in every snapshot since; later epochs are what another run left here."""
    store = ReplayStore(tmp_path, 1 << 20)
    for epoch in (0, 1, 2, 3, 9):
        store.write(build_entry(epoch, 0), BODIES)
    (tmp_path / "notes").mkdir()
    store.keep_epochs(2, 3)
    assert list_sets(tmp_path) == ["epoch-00002/000000.set", "epoch-00003/000000.set"]
    assert (tmp_path / "notes").is_dir()


def test_a_set_is_stored_while_old_epochs_are_dropped(tmp_path: Path) -> None:
    """Both happen after an epoch's end, each in a thread; files that vanish do not stop the writer."""
    store = ReplayStore(tmp_path, 1 << 20)
    for height in range(300):
        store.write(build_entry(1, height), BODIES)
    dropping = threading.Thread(target=store.keep_epochs, args=(2, 3))
    dropping.start()
    for height in range(50):
        store.write(build_entry(3, height), BODIES)
    dropping.join()
    assert list_sets(tmp_path) == [f"epoch-00003/{height:06d}.set" for height in range(50)]


def test_a_data_folder_that_is_removed_is_told_once_with_what_it_means_and_rounds_are_kept_again(
    tmp_path: Path,
) -> None:
    store = ReplayStore(tmp_path / "ada" / "replay", 1 << 20)
    store.write(build_entry(1, 1), BODIES)
    shutil.rmtree(tmp_path / "ada")
    store.keep_epochs(0, 1)
    with pytest.raises(TrainerError, match=r"data folder .*/ada: it was removed .* it would have another key"):
        store.write(build_entry(1, 2), BODIES)
    store.write(build_entry(1, 3), BODIES)
    assert list_sets(tmp_path / "ada" / "replay") == ["epoch-00001/000002.set", "epoch-00001/000003.set"]
