"""A file is read whole only if it is regular and small: whatever lies at a path, nobody waits or fills memory."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from psyche.backends.solana.wallet import Wallet, read_wallet, write_wallet
from psyche.client.runtime.app import LOCK_NAME, lock_data_dir
from psyche.durable import describe_write_error, open_lock, read_file, resolve_path
from psyche.errors import BackendError
from psyche.server.journal.disk import FolderDisk
from psyche.wire.key_file import make_identity, read_key_file, write_key_file

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


def test_a_key_that_others_can_read_is_named_once_with_the_command_that_mends_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, wallet = tmp_path / "a key", tmp_path / "wallet"
    write_key_file(key, make_identity())
    write_wallet(wallet, Wallet())
    read_key_file(key), read_wallet(wallet)
    assert caplog.messages == [], "as psyche makes them"
    key.chmod(0o604)
    wallet.chmod(0o602)
    for _ in range(2):
        read_key_file(key), read_wallet(wallet)
    assert caplog.messages == [
        f"others can read or write the key in {key}: chmod go-rwx '{key}'",
        f"others can read or write the key in {wallet}: chmod go-rwx {wallet}",
    ]


def take_for_server(folder: Path) -> None:
    FolderDisk(folder).close()


def take_for_client(folder: Path) -> None:
    os.close(lock_data_dir(folder))


@pytest.mark.parametrize("take", [take_for_server, take_for_client])
def test_a_folder_that_others_can_write_is_named_with_the_command_that_mends_it(
    tmp_path: Path, take: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    take(folder)
    assert caplog.messages == []
    folder.chmod(0o757)
    take(folder)
    assert caplog.messages == [f"others can write in {folder}: chmod go-w {folder}"]


@pytest.mark.parametrize(
    ("take", "name"), [(take_for_server, "lock"), (take_for_client, LOCK_NAME)], ids=["server", "client"]
)
def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path, take: Callable[[Path], None], name: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / name).symlink_to(tmp_path / "planted")
    with pytest.raises((OSError, BackendError), match="is a link, must be a file; remove it"):
        take(tmp_path / "state")
    assert not (tmp_path / "planted").exists()


def test_a_lock_is_held_by_one_alone(tmp_path: Path) -> None:
    held = open_lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        open_lock(tmp_path / "lock")
    os.close(held)
    os.close(open_lock(tmp_path / "lock"))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model"), "; free some space there"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "; free some space there"),
        (FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "model"), "; move away what is in the way"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "model"), ""),
    ],
)
def test_the_way_out_of_a_failed_write_is_that_of_its_cause(error: Exception, advice: str) -> None:
    assert describe_write_error(error) == f"{error}{advice}"
