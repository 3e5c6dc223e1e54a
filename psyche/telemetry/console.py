"""A terminal that several writers share: log lines scroll, one status block stays at the bottom.

Without a terminal there is no status block: `set_status` does nothing, and whoever wants to be seen
prints lines.
"""

import os
import shutil
import sys
import threading
from typing import TextIO

CLEAR_LINE = "\x1b[2K"
UP = "\x1b[1A"


class Console:
    """Lines and one status block on a stream; may be called from any thread.

    A stream that breaks (a closed pipe) silences the console and nothing else.
    """

    def __init__(self, stream: TextIO | None = None, *, live: bool | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.live = is_live(self._stream) if live is None else live
        self._status: list[str] = []
        self._lock = threading.RLock()
        self._broken = False

    @property
    def columns(self) -> int:
        """The width to lay out for; 120 without a terminal."""
        return shutil.get_terminal_size((120, 40)).columns if self.live else 120

    def print(self, text: str = "") -> None:
        """Write whole lines above the status block."""
        with self._lock:
            self._write(self._erase() + text + "\n" + self._draw())

    def set_status(self, text: str) -> None:
        """Replace the status block; lines are cut at the terminal's width. Nothing without a terminal."""
        if not self.live:
            return
        with self._lock:
            lines = [line[: max(1, self.columns - 1)] for line in text.splitlines()]
            if lines == self._status:
                return
            erase = self._erase()
            self._status = lines
            self._write(erase + self._draw())

    def clear_status(self) -> None:
        """Remove the status block."""
        self.set_status("")

    def _erase(self) -> str:
        if not self._status:
            return ""
        return "\r" + CLEAR_LINE + (UP + CLEAR_LINE) * (len(self._status) - 1)

    def _draw(self) -> str:
        return "\n".join(self._status)

    def _write(self, text: str) -> None:
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a reader that went away, or a closed stream
            self._broken = True

    # What makes a console the stream of a logging handler.

    def write(self, text: str) -> int:
        """Write log text; its last line feed is the console's own."""
        if text.strip("\n"):
            self.print(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def is_live(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can redraw; `NO_LIVE`, `TERM=dumb` and `CI` say no."""
    if os.environ.get("NO_LIVE") or os.environ.get("CI") or os.environ.get("TERM", "") in ("", "dumb"):
        return False
    try:
        return stream.isatty()
    except ValueError:
        return False
