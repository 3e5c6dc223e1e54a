"""A process that imports torch once, so that the trainers of all clients on one machine start at once and share it.

    python -m psyche.modeling.trainer.host --socket PATH --parent PID

A client finds the socket in the environment variable `PSYCHE_TRAINER_HOST`. It passes the trainer's socket and
log, and receives the exit status over the connection. The forking is done by the standard library's fork server.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import sys
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from psyche.modeling.trainer.child import die_with_parent, run_forked
from psyche.wire.msgpack import UNREADABLE

REQUEST_TIME: Final = struct.pack("ll", 5, 0)  # a timeval: a client sends its request at once, all others wait
MAX_REQUEST_BYTES: Final = 1 << 16
BACKLOG: Final = 64
Request = tuple[int, dict[str, str], str]  # threads, environment, folder


def serve(listener: socket.socket) -> NoReturn:
    """Have trainers forked on request, and report how each ended."""
    running: dict[int, tuple[ForkServerProcess, Connection]] = {}  # by sentinel
    while True:  # all in one thread: `start` looks at every process, which must not race with the report of its end
        for ready in wait([listener, *running]):
            if ready is listener:
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, REQUEST_TIME)
                connection = Connection(accepted.detach())
                try:
                    process = start_trainer(connection)
                except (OSError, EOFError, RuntimeError, *UNREADABLE) as error:  # RuntimeError: no descriptor came
                    print(f"trainer host: cannot start a trainer: {error}", file=sys.stderr)  # noqa: T201 - its log
                    connection.close()
                else:
                    running[process.sentinel] = process, connection
            elif isinstance(ready, int):
                process, connection = running.pop(ready)
                process.join()
                with contextlib.suppress(OSError), connection:
                    connection.send(process.exitcode)


def start_trainer(connection: Connection) -> ForkServerProcess:
    """Read a client's request, fork its trainer, and answer with the process id."""
    request = msgspec.json.decode(connection.recv_bytes(MAX_REQUEST_BYTES), type=Request)
    with socket.socket(fileno=recv_handle(connection)) as calls, Connection(recv_handle(connection)) as log:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=run_forked, args=(calls, log, *request))
        process.start()
    connection.send(process.pid)
    return process


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    context = multiprocessing.get_context("forkserver")
    # it computes nothing: of torch's threads, none would survive a fork
    context.set_forkserver_preload(["psyche.modeling.trainer.preload"])
    first = context.Process(target=os.getpid)  # ends once the fork server has imported everything
    first.start()
    first.join()
    temporary = arguments.socket.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(temporary))
        listener.listen(BACKLOG)
        temporary.rename(arguments.socket)  # only now: a client that sees the path may connect
        serve(listener)


if __name__ == "__main__":
    main()
