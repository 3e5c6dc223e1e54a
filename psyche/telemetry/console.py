"""A terminal that several writers share: log lines scroll, one status block stays at the bottom.

Without a terminal there is no status block: `set_status` does nothing, and writers print lines instead.
"""

import os
import shutil
import sys
import threading
from collections import deque
from typing import Final, TextIO

CLEAR_LINE = "\x1b[2K"
UP = "\x1b[1A"
MAX_HELD_LINES: Final = 200


class Console:
    """Writes lines and one status block to a stream; may be called from any thread.

    If the stream breaks (a closed pipe), the console falls silent; the program goes on.
    """

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.live = is_live(self._stream) if live is None else live
        self._status: list[str] = []
        self._lock = threading.RLock()
        self.is_broken = False
        self._held: deque[str] | None = None  # lines of the time in which another program has the terminal

    @property
    def columns(self) -> int:
        return shutil.get_terminal_size((120, 40)).columns if self.live else 120

    def print(self, text: str = "") -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(text)
                return
            self._write(self._erase() + text + "\n" + self._draw())

    def hold(self) -> None:
        """Leave the terminal to another program: keep the last lines until `release`."""
        with self._lock:
            self._write(self._erase())
            self._status, self._held = [], deque(maxlen=MAX_HELD_LINES)

    def release(self) -> None:
        with self._lock:
            lines, self._held = self._held or (), None
            for line in lines:
                self.print(line)

    def set_status(self, text: str) -> None:
        """Replace the status block, cut to the terminal's width. Without a terminal, do nothing."""
        if not self.live or self._held is not None:
            return
        with self._lock:
            lines = [line[: max(1, self.columns - 1)] for line in text.splitlines()]
            if lines == self._status:
                return
            erase, self._status = self._erase(), lines
            self._write(erase + self._draw())

    def clear_status(self) -> None:
        self.set_status("")

    def _erase(self) -> str:
        if not self._status:
            return ""
        # The cursor stands at the end of the block's last line, since the block ends without a line feed.
        return "\r" + CLEAR_LINE + (UP + CLEAR_LINE) * (len(self._status) - 1)

    def _draw(self) -> str:
        return "\n".join(self._status)

    def _write(self, text: str) -> None:
        if self.is_broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone, or the stream is closed
            self.is_broken = True

    # These methods let a logging handler use a console as its stream.

    def write(self, text: str) -> int:
        """Write log text; the console adds the last line feed itself."""
        if text.strip("\n"):
            self.print(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: every write is flushed."""


def is_live(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can redraw; `NO_LIVE`, `TERM=dumb` or `CI` turn that off."""
    if os.environ.get("NO_LIVE") or os.environ.get("CI") or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False
