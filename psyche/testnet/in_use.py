"""Folders that a running process uses, so that `scripts/demo --clean` leaves them alone."""

import fcntl
import os
from pathlib import Path


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
