"""Files and folders that are still there after a power cut.

A file's bytes are safe when the file was synced, its name is when the folder with the name was. Every function
blocks until the disk says so, and raises OSError where it cannot.
"""

import os
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make a folder, with those above it that are missing.

    Its own name is synced even where it is there: whoever made it may have died before.
    """
    missing = [folder for folder in path.parents if not folder.is_dir()]
    for folder in (*reversed(missing), path):
        folder.mkdir(exist_ok=True)
        with suppress(PermissionError):  # who may write names into a folder need not be allowed to read it
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Wait until the disk has the bytes of a file that something else wrote."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write a file's bytes; its name is safe once its folder is synced."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def create_file(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Make a file that is whole or not there; a file, or link, that is there already raises FileExistsError.

    `temporary` may be there: its mode becomes the file's.
    """
    try:
        write_file(temporary, data)
        os.link(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes | memoryview, temporary: Path) -> None:
    """Put a whole file in the place of the old one: afterwards, and after a power cut, it is the old or the new one."""
    write_file(temporary, data)
    temporary.replace(path)
    sync_folder(path.parent)
