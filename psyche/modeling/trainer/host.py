"""A process that imports torch once and forks trainers from itself, so that clients on one machine start at once.

    python -m psyche.modeling.trainer.host --socket PATH --parent PID

A client finds the socket in the environment variable `PSYCHE_TRAINER_HOST`. It passes the
trainer's socket and log, and receives the exit status over the connection. The host computes nothing:
a process that has run torch's threads cannot be forked.
"""

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from psyche.modeling.trainer.child import CallLoop, die_with_parent
from psyche.modeling.trainer.frames import Spawn, Spawned
from psyche.wire.msgpack import UNREADABLE

MAX_REQUEST_BYTES: Final = 1 << 16
BACKLOG: Final = 64


class TrainerHost:
    """Forks trainers on request, reaps them, and reports how they ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, socket.socket] = {}
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> NoReturn:
        """Serve requests and reap children for ever."""
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # only lets the signal wake the selector
        signal.set_wakeup_fd(self._waker.fileno())
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
            self._reap()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(5)  # a client sends its request at once
        try:
            raw, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 2)
            request = msgspec.json.decode(raw, type=Spawn)
        except (OSError, *UNREADABLE) as error:
            print(f"trainer host: cannot read a request: {error}", file=sys.stderr)  # noqa: T201 - its log
            connection.close()
            return
        if len(descriptors) != 2:
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._become_trainer(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[pid] = connection
        connection.sendall(msgspec.json.encode(Spawned(pid)) + b"\n")

    def _become_trainer(self, request: Spawn, descriptors: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            host = os.getppid()
            die_with_parent(host)
            for held in (self._listener, self._waker, self._woken, *self._children.values()):
                held.close()
            os.dup2(descriptors[1], 1)
            os.dup2(descriptors[1], 2)
            os.environ.update(request.environment)
            os.chdir(request.folder)
            CallLoop(socket.socket(fileno=descriptors[0]), request.threads).serve()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - the host's code must not run in the fork
            traceback.print_exc()
        os._exit(status)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                connection = self._children.pop(pid, None)
                if connection is not None:
                    with contextlib.suppress(OSError), connection:
                        report = Spawned(pid, os.waitstatus_to_exitcode(status))
                        connection.sendall(msgspec.json.encode(report) + b"\n")


def main() -> NoReturn:
    """Import what trainers need, then serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    import psyche.modeling.trainer.engine  # noqa: F401 - torch and transformers, for all trainers at once

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = arguments.socket.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    listener.bind(str(temporary))
    listener.listen(BACKLOG)
    temporary.rename(arguments.socket)  # only now: a client that sees the path may connect
    TrainerHost(listener).serve()


if __name__ == "__main__":
    main()
