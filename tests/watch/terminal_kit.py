"""A program on a real pseudo-terminal: what it draws, what it is typed, how it leaves the terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
COLOURS = re.compile(r"[34]8;2;(\d+);(\d+);(\d+)")
WAIT_S = 60.0


class Terminal:
    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process, self.master = process, master
        self.written = ""

    @property
    def text(self) -> str:
        """All that was drawn, without what moves the cursor or sets colours."""
        return ESCAPES.sub("", self.written)

    def read(self, wait_s: float = 0.1) -> bool:
        if not select.select([self.master], [], [], wait_s)[0]:
            return False
        try:
            read = os.read(self.master, 1 << 16)
        except OSError:  # the program has ended
            return False
        self.written += read.decode(errors="replace")
        return bool(read)

    def wait_for(self, *words: str, after: int = 0) -> int:
        """Read until all words were drawn; returns how much was, for the `after` of the next call."""
        end = time.monotonic() + WAIT_S
        while not all(word in self.text[after:] for word in words):
            self.read()
            assert time.monotonic() < end, self.text[-4000:]
            assert self.process.poll() is None, self.text[-4000:]
        return len(self.text)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_end(self) -> int:
        end = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, self.text[-4000:]
        while self.read():
            pass
        return self.process.returncode

    @property
    def has_colour(self) -> bool:
        return any(len({*found.groups()}) > 1 for found in COLOURS.finditer(self.written))

    @property
    def is_restored(self) -> bool:
        """Whether lines are edited again, the cursor is there, and the first screen too."""
        flags = termios.tcgetattr(self.master)[3]
        left, shown = self.written.rfind("\x1b[?1049l"), self.written.rfind("\x1b[?25h")
        is_left = left > self.written.rfind("\x1b[?1049h") and shown > self.written.rfind("\x1b[?25l")
        return is_left and bool(flags & termios.ICANON and flags & termios.ECHO)


@contextmanager
def open_terminal(
    *words: str, columns: int = 80, rows: int = 24, program: Sequence[str] = ("-m", "psyche"), **variables: str
) -> Iterator[Terminal]:
    """Run `psyche`, or another program of Python's, with these words on a terminal that is its own."""
    master, slave = pty.openpty()
    hidden = {"CI", "NO_LIVE", "NO_COLOR", "COLUMNS", "LINES"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = ["setsid", "--ctty", sys.executable, *program, *words]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment | variables) as process:
        terminal = Terminal(process, master)
        terminal.resize(columns, rows)
        try:
            yield terminal
        finally:
            process.kill()
            os.close(slave)
            os.close(master)
