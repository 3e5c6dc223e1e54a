"""Files and folders that survive a power cut.

A file's bytes are safe after the file is synced, its name after its folder is synced. Every function that writes blocks
until the disk confirms that; all raise OSError on failure. Files that people name may be anything: `read_file`.
"""

import errno
import fcntl
import grp
import logging
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO, Final

_ADVICE: Final = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EEXIST: "move away what is in the way",
    errno.ENOTDIR: "move away the file that is in the way",
    errno.EACCES: "let this user write there",
    errno.EROFS: "name a folder on another disk",
}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in an OSError of the block that names nothing, as those of `write` and `fsync` do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it; never waits, as `open` does where the path is a pipe.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe or a device; `strerror` says which.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "is a pipe or a device, must be a file", os.fspath(path))


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a whole regular file of at most `max_bytes`; a larger one is not read.

    Raises:
        OSError: as `open_file`, or the file is larger.
    """
    with open_file(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        raw = b"" if size_bytes > max_bytes else file.read(max_bytes + 1)
    if max(size_bytes, len(raw)) > max_bytes:
        raise OSError(errno.EOVERFLOW, f"has more than {max_bytes:,} bytes", os.fspath(path))
    return raw


def open_lock(path: Path) -> int:
    """Lock a file, made if it is missing, for this process alone; return its descriptor, which holds the lock.

    Raises:
        BlockingIOError: another process holds it.
        OSError: it cannot be opened, or is a link: whoever put it there would choose the file that is made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.EINVAL, "is a link, must be a file; remove it", os.fspath(path)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def warn_of_others(path: Path) -> None:
    """Warn once, with the command that mends it, of others who can use a key file, or write in a folder."""
    found = path.stat()
    is_folder = stat.S_ISDIR(found.st_mode)
    wrong = 0o022 if is_folder else 0o066
    if _is_private_group(found):
        wrong &= 0o007
    if found.st_mode & wrong:
        what = f"others can write in {path}" if is_folder else f"others can read or write the key in {path}"
        _warn(f"{what}: chmod {'go-w' if is_folder else 'go-rwx'} {shlex.quote(os.fspath(path))}")


def _is_private_group(found: os.stat_result) -> bool:
    """Whether the group has its owner's name, and nobody else in it, as most systems make one for each user."""
    try:
        group, owner = grp.getgrgid(found.st_gid), pwd.getpwuid(found.st_uid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and not set(group.gr_mem) - {owner.pw_name}


@cache
def _warn(text: str) -> None:
    logging.getLogger("psyche.files").warning("%s", text)


def expand_user(path: Path | str) -> Path:
    """Put the user's folder for a `~`; of a user that there is not, the `~` stays (`Path.expanduser` would raise)."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def resolve_path(folder: Path, name: str) -> Path:
    """The absolute path of `name` in `folder`, without links; where they lead in a circle (`Path.resolve` would raise
    RuntimeError), they stay, and whoever uses the path gets an OSError.
    """
    return Path(os.path.realpath(folder / expand_user(name)))


def describe_write_error(error: Exception) -> str:
    """What kept something from being written, and the way out where it is known; also of libraries that quote it."""
    text = str(error)
    found = (advice for number, advice in _ADVICE.items() if os.strerror(number) in text)
    return "; ".join((text, *found))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents.

    The folder's name is synced even if the folder exists: the process that created it may have died before its sync.
    """
    missing = [folder for folder in path.parents if not folder.is_dir()]
    for folder in (*reversed(missing), path):
        folder.mkdir(exist_ok=True)
        with suppress(PermissionError):  # a folder may be writable but not readable
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Sync the bytes of an existing file to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write a file and sync its bytes; its name is safe only once its folder is synced."""
    with naming(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def create_file(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Create a file atomically; FileExistsError if the path exists already, even as a link.

    `temporary` may exist: the file then gets its mode.
    """
    try:
        write_file(temporary, data)
        os.link(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Replace a file atomically: after a power cut, either the old or the new file is there, complete."""
    write_file(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)
