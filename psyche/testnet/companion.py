"""What runs beside a node as a child: `psyche watch` in the background, or a screen that gets the node's terminal."""

import contextlib
import os
import shutil
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from psyche.telemetry.console import Console, is_live
from psyche.telemetry.loading import EXIT_INTERRUPTED
from psyche.testnet.process import KILL_WAIT_S, PSYCHE, Child, describe_exit_status
from psyche.wire.nursery import open_plain_nursery

WATCH: Final = (*PSYCHE, "watch")
LEAVE_S: Final = 5.0
MAX_OUTPUT_BYTES: Final = 4 << 20  # of a watcher, and as much aside: five days of a line every ten seconds each
BOUND_S: Final = 60.0
# What a screen that was killed cannot undo: the second page, hidden cursor, mouse and paste reports, colours.
UNDO: Final = "\x1b[?1049l\x1b[?25h\x1b[?1000;1002;1003;1006;1015;2004l\x1b[0m"


def has_terminal() -> bool:
    """Whether a screen can take the terminal, and would be seen there."""
    return sys.stdin.isatty() and all(is_live(stream) for stream in (sys.stdout, sys.stderr))


@asynccontextmanager
async def open_screen(argv: Sequence[str], console: Console) -> AsyncGenerator[None]:
    """Leave the terminal to a program until it ends, or the block does.

    Meanwhile the console is held. If the user ends the program by Ctrl-C, this process gets that SIGINT.
    """
    kept = termios.tcgetattr(sys.stdin)
    console.hold()
    child = Child("screen", argv, has_terminal=True)

    def take_back() -> None:
        if child.returncode not in (0, EXIT_INTERRUPTED):
            sys.stderr.write(UNDO)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
        console.release()

    async def wait() -> None:
        code = await child.wait()
        take_back()
        if code == EXIT_INTERRUPTED:
            signal.raise_signal(signal.SIGINT)
        elif code:
            console.print(f"the screen has ended, {describe_exit_status(code)}; this goes on")

    async with open_plain_nursery() as nursery:
        nursery.start_soon(wait)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            if child.returncode is None:
                await _stop(child, LEAVE_S, signal.SIGTERM)
                take_back()


@asynccontextmanager
async def open_watch(words: Sequence[str | Path], output: Path, leave_s: float = LEAVE_S) -> AsyncGenerator[Child]:
    """Run `psyche watch` with these words in the background while the block runs; it prints into `output`.

    At the end it is interrupted as by Ctrl-C, and has `leave_s` to write what it still has.
    """
    child = Child("watch", [*WATCH, *map(str, words)], output=output)
    try:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(keep_small, output)
            yield child
            nursery.cancel_scope.cancel()
    finally:
        if child.returncode is None:
            await _stop(child, leave_s, signal.SIGINT)


async def keep_small(output: Path) -> None:
    """Move what a child prints into a file aside, again and again."""
    while True:
        await trio.sleep(BOUND_S)
        await trio.to_thread.run_sync(_move_aside, output)


def _move_aside(output: Path) -> None:
    """Move what a child has printed aside where it is much; it goes on in the same file, to which it appends."""
    with contextlib.suppress(OSError):  # a full disk, a file that was deleted
        if output.stat().st_size > MAX_OUTPUT_BYTES:
            shutil.copyfile(output, output.with_name(f"{output.name}.1"))
            os.truncate(output, 0)


async def _stop(child: Child, leave_s: float, number: signal.Signals) -> None:
    """Stop a child, also where this task is cancelled."""
    with trio.move_on_after(leave_s + KILL_WAIT_S) as scope:
        scope.shield = True
        await child.stop(leave_s, number)
