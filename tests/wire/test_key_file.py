"""A key's file: made once, read by its owner alone, and whole or not there when the power fails."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.power_loss import watch_disk

from psyche.wire.crypto import Identity
from psyche.wire.key_file import read_key_file, write_key_file

KEY = Identity(bytes(range(32)))


def test_a_power_cut_leaves_the_whole_key_or_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with watch_disk(root) as watch:
        write_key_file(root / "data/of/a.key", KEY)
        watch.promise(KEY.public)
    for number, loss in enumerate(watch.losses):
        folder = tmp_path / str(number)
        folder.mkdir()
        loss.restore(folder)
        path = folder / "data/of/a.key"
        found = read_key_file(path).public if path.exists() else None
        assert found == KEY.public or (found is None and loss.promised is None), loss.moment


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    write_key_file(tmp_path / "a.key", KEY)
    with pytest.raises(FileExistsError):
        write_key_file(tmp_path / "a.key", Identity(bytes(32)))
    assert read_key_file(tmp_path / "a.key").public == KEY.public
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]


def test_of_two_that_make_a_key_at_once_one_is_refused(tmp_path: Path) -> None:
    def save(number: int) -> int | None:
        try:
            write_key_file(tmp_path / "a.key", Identity(bytes([number]) * 32))
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        (made,) = [number for number in pool.map(save, range(8)) if number is not None]
    assert read_key_file(tmp_path / "a.key").public == Identity(bytes([made]) * 32).public
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]


def test_a_link_to_nowhere_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_key_file(tmp_path / "a.key", KEY)
    assert not (tmp_path / "elsewhere").exists()


def test_a_key_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    write_key_file(tmp_path / "a.key", KEY)
    assert stat.S_IMODE((tmp_path / "a.key").stat().st_mode) == 0o600
