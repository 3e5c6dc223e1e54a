"""The journal's disk on a real folder: every write is synced, and one process at a time may hold the folder."""

import os
from pathlib import Path
from typing import Final

from psyche.durable import make_folder, open_lock, replace_file, sync_folder, warn_of_others
from psyche.errors import BackendError

_LOCK: Final = "lock"
_TEMPORARY: Final = ".tmp"


class FolderDisk:
    """A `JournalDisk` in a folder, which is created if it is missing.

    Raises:
        BackendError: another process holds the folder, or it cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open_name = ""
        self._open_fd = -1
        try:
            make_folder(folder)
            self._lock_fd = open_lock(folder / _LOCK)
            warn_of_others(folder)
        except BlockingIOError as error:
            raise BackendError(f"state folder {folder}: another server is using it; stop that one first") from error
        except OSError as error:
            what = f"state folder {folder}: {Path(error.filename or folder).name}: {error.strerror}"
            raise BackendError(f"{what}; or choose another with --state-dir") from error
        for leftover in folder.glob(f"*{_TEMPORARY}"):
            leftover.unlink()

    def close(self) -> None:
        self._close_open()
        os.close(self._lock_fd)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if path.is_file() and path.name != _LOCK)

    def read(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def append(self, name: str, data: bytes) -> None:
        if name != self._open_name:  # it stays open for the next append
            self._open(name)
        view = memoryview(data)
        while view:
            view = view[os.write(self._open_fd, view) :]
        os.fdatasync(self._open_fd)

    def replace(self, name: str, data: bytes) -> None:
        replace_file(self._folder / name, data, self._folder / (name + _TEMPORARY))

    def truncate(self, name: str, size_bytes: int) -> None:
        with (self._folder / name).open("r+b") as file:
            file.truncate(size_bytes)
            os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        if name == self._open_name:
            self._close_open()
        (self._folder / name).unlink(missing_ok=True)

    def _open(self, name: str) -> None:
        self._close_open()
        self._open_fd = os.open(self._folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._open_name = name
        sync_folder(self._folder)

    def _close_open(self) -> None:
        if self._open_fd >= 0:
            os.close(self._open_fd)
        self._open_name, self._open_fd = "", -1
