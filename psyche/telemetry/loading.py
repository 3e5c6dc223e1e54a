"""Says that something slow is loaded, and lets Ctrl-C end it at once."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

EXIT_INTERRUPTED = 130  # stopped by Ctrl-C, as shells count it


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """While inside, slow libraries are imported: `loading torch ...` on stderr, and Ctrl-C ends the process with 130.

    At once, because a library whose import is interrupted makes any error of it, or none. So nothing may be inside
    that must be tidied up.
    """
    sys.stderr.write(f"loading {what} ...\n")
    sys.stderr.flush()
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's business
        return
    former = signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
