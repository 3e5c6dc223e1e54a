"""A key's file: made once, read by its owner alone, and whole or not there when the power fails."""

import stat
from pathlib import Path

import pytest

from psyche.testing.power_loss import watch_disk
from psyche.wire.crypto import Identity

KEY = Identity(bytes(range(32)))


def test_a_power_cut_leaves_the_whole_key_or_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with watch_disk(root) as watch:
        KEY.save(root / "data/of/a.key")
        watch.promise(KEY.public)
    for number, loss in enumerate(watch.losses):
        folder = tmp_path / str(number)
        folder.mkdir()
        loss.restore(folder)
        path = folder / "data/of/a.key"
        found = Identity.load(path).public if path.exists() else None
        assert found == KEY.public or (found is None and loss.promised is None), loss.moment


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    KEY.save(tmp_path / "a.key")
    with pytest.raises(FileExistsError):
        Identity(bytes(32)).save(tmp_path / "a.key")
    assert Identity.load(tmp_path / "a.key").public == KEY.public
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]


def test_a_key_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    KEY.save(tmp_path / "a.key")
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
