"""A trainer forked by a host, with the interface of `subprocess.Popen` that a supervisor needs; no torch here."""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from psyche.modeling.trainer.frames import Spawn, Spawned

ASK_TIMEOUT_S = 10.0


class Process(Protocol):
    """The interface that a supervisor needs of a child process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        ...

    def kill(self) -> None:
        """Kill the process."""
        ...

    def wait(self) -> int | None:
        """The exit status; call it once the process has ended."""
        ...


class HostedProcess:
    """One forked trainer. If its host dies it counts as killed, because the kernel kills it with the host."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self.returncode: int | None = None
        report = self._read()
        if report is None:
            raise ConnectionError("the trainer host ended")
        self.pid = report.pid

    def _read(self) -> Spawned | None:
        """The next line; None if the host has died.

        Raises:
            BlockingIOError, TimeoutError: it has not arrived yet.
        """
        while b"\n" not in self._buffer:
            part = self._connection.recv(4096)
            if not part:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return msgspec.json.decode(line, type=Spawned)

    def poll(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._take(0.0)

    def wait(self) -> int | None:
        """The exit status, which the host reports shortly after the end."""
        return self._take(ASK_TIMEOUT_S)

    def _take(self, timeout_s: float) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            with contextlib.suppress(BlockingIOError, TimeoutError):
                report = self._read()
                self.returncode = -signal.SIGKILL if report is None else report.status
                self._connection.close()
        return self.returncode

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def spawn_hosted(path: str, trainer: int, log: int, threads: int, environment: Mapping[str, str]) -> HostedProcess:
    """Have the host at `path` fork a trainer with the socket `trainer` and the log `log` (descriptors).

    Raises:
        OSError: the host is gone or does not answer.
    """
    request = Spawn(threads, dict(environment), str(Path.cwd()))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ASK_TIMEOUT_S)
    try:
        connection.connect(path)
        socket.send_fds(connection, [msgspec.json.encode(request)], [trainer, log])
        return HostedProcess(connection)
    except OSError:
        connection.close()
        raise
