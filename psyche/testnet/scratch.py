"""A folder below /tmp, because the path of a socket must be short. The next start removes that of a killed run."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "psyche-"
LOCK_NAME: Final = "lock"


class Scratch:
    """A folder of this process, held by a lock that the system releases when the process ends."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        new = self.path / f"{LOCK_NAME}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK_NAME)  # so that it is never visible unlocked while this process lives

    def remove(self) -> None:
        """Remove the folder; may be called more than once."""
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
