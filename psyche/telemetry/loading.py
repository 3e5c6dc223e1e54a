"""Announces slow imports, and lets Ctrl-C end the process during them."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

EXIT_INTERRUPTED = 130  # stopped by Ctrl-C, by shell convention


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Import slow libraries inside: prints `loading torch ...` on stderr, and Ctrl-C ends the process with 130.

    It ends at once, because KeyboardInterrupt during an import may surface as any error, or be lost. So the context
    must not hold anything that needs cleaning up.
    """
    sys.stderr.write(f"loading {what} ...\n")
    sys.stderr.flush()
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    former = signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
