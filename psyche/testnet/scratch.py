"""A folder below /tmp, for the path of a socket must be short. That of a killed run goes at the next start."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

PREFIX: Final = "psyche-"
LOCK_NAME: Final = "lock"


class Scratch:
    """A folder of this process, held by a lock that ends with it, however it ends."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        new = self.path / f"{LOCK_NAME}.new"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK_NAME)  # nobody ever sees it unlocked while this process lives

    def remove(self) -> None:
        """Remove it; more than once is no error."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def remove_abandoned(parent: Path) -> None:
    """Remove this user's folders that no living process holds; others are left alone."""
    for folder in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # not one of ours, not this user's, or gone meanwhile
            continue
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # it is held: its run lives
            pass
        finally:
            os.close(lock)
