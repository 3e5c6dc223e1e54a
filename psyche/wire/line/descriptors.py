"""Open files of a process: connections may take what the system allows, except what all else needs (K7).

Where none is left, the journal's next file cannot be opened, and every `accept` fails until a connection ends.
"""

import logging
import os
import resource
import time
from contextlib import suppress
from typing import Final

SPARE: Final = 32  # of journal, snapshots, logs and folders: half; of connections that come and go: the other half
ENOUGH: Final = 65_536
TELL_S: Final = 60.0
WAY_OUT: Final = f"allow more before you start it: ulimit -n {ENOUGH}"


def raise_limit() -> None:
    """Let this process open as many files as it may without asking anybody; tell of a shortage once a minute."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    logging.getLogger("trio.serve_listeners").addFilter(_shortage)


def get_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def count_places(kept: int = 0) -> int:
    """Count the connections that may be opened beside what is open now, what is spare, and `kept` more files."""
    return max(0, get_limit() - len(os.listdir("/proc/self/fd")) - SPARE - kept)  # noqa: PTH208 - blocks for microseconds


def is_spare(descriptor: int) -> bool:
    """Whether a connection with this descriptor must be closed at once: the system gives the lowest that is free."""
    return descriptor >= get_limit() - SPARE // 2


class _Shortage(logging.Filter):
    """trio logs a failed `accept` with its traceback, ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if time.monotonic() < self._next_s:
            return False
        self._next_s = time.monotonic() + TELL_S
        record.exc_info = None
        record.msg = f"new connections wait until others end: %s (%s), tried again every %s s; {WAY_OUT}"
        return True


_shortage: Final = _Shortage()
