"""Folders that a running process holds by a lock, which the system releases when the process ends."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "psyche-"
LOCK_NAME: Final = "lock"


class Scratch:
    """A folder below /tmp, because the path of a socket must be short. The next start removes that of a killed run."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        new = self.path / f"{LOCK_NAME}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK_NAME)  # so that it is never visible unlocked while this process lives

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders that no running process holds."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # not one of ours, another user's, or removed meanwhile
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # locked: its run is alive
            pass
        finally:
            os.close(lock)


def hold_folder(folder: Path) -> None:
    """Make a folder if it is missing, and hold a shared lock on it until this process ends.

    Who cleans up takes the exclusive lock first (`scripts/clean.sh`), so a folder may vanish before it is held: then it
    is made anew.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # left open: the system releases it when the process ends
        if folder.exists() and os.path.samestat(folder.stat(), os.fstat(descriptor)):
            return
        os.close(descriptor)
