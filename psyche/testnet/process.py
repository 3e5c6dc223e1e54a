"""Child processes that die with their parent, each with its own process group and its output in a file."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from psyche.errors import PsycheError

PSYCHE: Final = (sys.executable, "-m", "psyche")
LAUNCHER: Final = Path(__file__).with_name("launch.py")
KILL_WAIT_S: Final = 10.0  # for a SIGKILLed group to end; only a process stuck in the kernel takes longer
TAIL_BYTES: Final = 16 << 10


class Child:
    """A running program, which dies when the thread that started it ends: start it in trio's main thread.

    It has its own process group, so that a terminal's Ctrl-C reaches only the supervisor, and a kill also ends the
    program's own children. One that `has_terminal` shares this process's terminal and group instead, and is told
    (SIGTERM) of its parent's death, so that it leaves the terminal in order.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, output: Path = Path(os.devnull), env: Mapping[str, str] | None = None,
        has_terminal: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.output = output
        self._kill = os.kill if has_terminal else os.killpg
        output.parent.mkdir(parents=True, exist_ok=True)
        parent = f"{os.getpid()}:{signal.SIGTERM.value}" if has_terminal else str(os.getpid())
        command = [sys.executable, "-S", "-E", str(LAUNCHER), parent, *argv]
        with output.open("ab") as file:
            self._start_bytes = file.tell()
            self._popen = subprocess.Popen(
                command, stdin=None if has_terminal else subprocess.DEVNULL, stdout=None if has_terminal else file,
                stderr=None if has_terminal else subprocess.STDOUT, env={**os.environ, **(env or {})},
                start_new_session=not has_terminal,
            )  # fmt: skip
        self.pid = self._popen.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._reaped = False

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def is_running(self) -> bool:
        if self._reaped:
            return False
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    async def wait(self) -> int:
        """Wait for the end, kill what is left of its group, and return the exit status.

        May be awaited by several tasks, and cancelled.
        """
        if not self._reaped:
            fd = os.dup(self._pidfd)  # one descriptor per waiter: trio lets only one task wait on a descriptor
            try:
                await trio.lowlevel.wait_readable(fd)
            finally:
                os.close(fd)
            self._reap()
        return self._popen.wait()

    def _reap(self) -> None:
        if self._reaped:
            return
        self._reaped = True
        self._kill_group()  # before the wait: until then the group's number cannot be reused
        self._popen.wait()
        os.close(self._pidfd)

    def send(self, number: signal.Signals) -> None:
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        if not self._reaped:
            self._kill_group()

    async def stop(self, timeout_s: float, number: signal.Signals = signal.SIGINT) -> bool:
        """Send a signal, and kill the program after `timeout_s`; return true if it ended by itself.

        A cancelled stop still kills the program, so that nothing is left running.
        """
        self.send(number)
        with trio.move_on_after(timeout_s):
            try:
                await self.wait()
            finally:
                if not self._reaped:
                    await self.end()
        return self._popen.returncode not in (None, -signal.SIGKILL)

    async def end(self) -> None:
        """Kill the program and wait for its end, even when cancelled.

        Raises:
            PsycheError: the process did not end within `KILL_WAIT_S`.
        """
        self.kill()
        with trio.move_on_after(KILL_WAIT_S) as scope:
            scope.shield = True
            await self.wait()
        if scope.cancelled_caught:
            raise PsycheError(f"{self.name}: process {self.pid} survives SIGKILL; inspect it with ps and dmesg")

    def get_last_lines(self, count: int) -> list[str]:
        try:
            with self.output.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._start_bytes, size - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._kill(self.pid, signal.SIGKILL)


def describe_exit_status(returncode: int | None) -> str:
    if returncode is None:
        return "still running"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


async def stop_all(children: Sequence[Child], timeout_s: float) -> list[str]:
    stubborn: list[str] = []

    async def stop_one(child: Child) -> None:
        if child.returncode is None and not await child.stop(timeout_s):
            stubborn.append(child.name)

    async with trio.open_nursery() as nursery:
        for child in children:
            nursery.start_soon(stop_one, child)
    return stubborn
