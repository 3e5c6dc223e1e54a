"""Files and folders that survive a power cut.

A file's bytes are safe after the file is synced, its name after its folder is synced. Every function blocks until the
disk confirms that, and raises OSError on failure.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in an OSError of the block that names nothing, as those of `write` and `fsync` do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


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
