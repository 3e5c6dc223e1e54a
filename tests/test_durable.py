"""A file is read whole only if it is regular and small: whatever lies at a path, nobody waits or fills memory."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psyche.durable import read_file, resolve_path

SPOILS: dict[str, tuple[Callable[[Path], object], int]] = {
    "a pipe": (os.mkfifo, errno.EINVAL),
    "endless": (lambda path: path.symlink_to("/dev/zero"), errno.EINVAL),
    "a folder": (Path.mkdir, errno.EISDIR),
    "a circle of links": (lambda path: path.symlink_to(path), errno.ELOOP),
    "too large": (lambda path: path.write_bytes(bytes(11)), errno.EOVERFLOW),
    "too large to be there": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), errno.EOVERFLOW),
    "endless and of size 0": (lambda path: path.symlink_to("/proc/self/maps"), errno.EOVERFLOW),
}


@pytest.mark.parametrize(("make", "number"), SPOILS.values(), ids=SPOILS)
def test_what_is_no_small_file_is_refused_at_once_by_name(
    tmp_path: Path, make: Callable[[Path], object], number: int
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(OSError, match="file") as caught:
        read_file(path, 10)
    assert (caught.value.errno, caught.value.filename) == (number, str(path))


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link", 10) == bytes(10)


def test_a_name_that_leads_nowhere_is_a_path_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    assert resolve_path(tmp_path, "circle/x") == tmp_path / "circle/x"
    assert resolve_path(tmp_path, "~no-such-user-9/x") == tmp_path / "~no-such-user-9/x"
    assert resolve_path(tmp_path, "~").is_absolute()
