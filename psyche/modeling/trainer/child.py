"""The trainer's own process: `python -m psyche.modeling.trainer.child --fd N --parent PID`.

A thread reads the socket, so that a cancel arrives while a batch trains; the process ends at once
when the parent is gone. SIGINT is ignored: the parent decides.
"""

import argparse
import ctypes
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from psyche.errors import ConfigError, PsycheError, UnusableModelError, WireError
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.fault import FaultInjector, read_faults
from psyche.modeling.trainer.frames import (
    REFUSED,
    UNUSABLE,
    Beat,
    Call,
    CallReply,
    Cancel,
    ChildStarted,
    Prepare,
    Shorten,
    decode_to_child,
    receive_frame,
    send_frame,
)
from psyche.wire.trainer import (
    ApplyRequest,
    AuditRequest,
    CheckRequest,
    LoadRequest,
    MemoryRequest,
    MergeRequest,
    OpenRequest,
    Reply,
    ScoreRequest,
    SnapshotRequest,
    TrainRequest,
)

if TYPE_CHECKING:
    from psyche.modeling.trainer.engine import TrainerEngine

MAX_WAITING_CALLS: Final = 8  # the parent sends one at a time; more means that the parent is broken
ERROR_CHARACTERS: Final = 8_000
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once if it is already dead."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


class CallQueue:
    """The queue of calls, filled by a thread of its own; it remembers which calls were cancelled or cut short."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._calls: queue.Queue[Call] = queue.Queue(MAX_WAITING_CALLS)
        self.on_payload: Callable[[bytes], None] = lambda _: None
        self._deadlines: dict[int, float] = {}
        self._cancelled = -1  # calls have rising numbers and run in order, so the highest is enough
        threading.Thread(target=self._read, name="calls", daemon=True).start()

    def _read(self) -> None:
        try:
            while (raw := receive_frame(self._connection)) is not None:
                match decode_to_child(raw):
                    case Cancel(number):
                        self._cancelled = max(self._cancelled, number)
                    case Shorten(number, within_s):
                        self._shorten(number, within_s)
                    case Prepare(payload):
                        self.on_payload(payload)
                    case Call() as call:
                        self._shorten(call.number, getattr(call.request, "within_s", math.inf))
                        self._calls.put_nowait(call)
        except (WireError, queue.Full) as error:
            print(f"trainer: {error or 'too many calls waiting'}", file=sys.stderr)  # noqa: T201 - its log
            os._exit(1)
        os._exit(0)  # the parent is gone, whatever the main thread does

    def next(self) -> Call:
        return self._calls.get()

    def is_cancelled(self, number: int) -> bool:
        return number <= self._cancelled

    def _shorten(self, number: int, within_s: float) -> None:
        known = {one: deadline for one, deadline in self._deadlines.items() if one >= number}
        self._deadlines = known | {number: min(time.monotonic() + within_s, known.get(number, math.inf))}

    def has_time(self, number: int, seconds: float) -> bool:
        """Whether so much more of a call fits before its deadline."""
        return time.monotonic() + seconds <= self._deadlines.get(number, math.inf)


class CallLoop:
    def __init__(self, connection: socket.socket, threads: int) -> None:
        self._connection = connection
        self._queue = CallQueue(connection)
        self._faults = FaultInjector(read_faults())
        self._engine = self._start(threads)
        self._queue.on_payload = self._engine.prepare

    def _start(self, threads: int) -> "TrainerEngine":
        import torch

        from psyche.modeling.trainer.engine import TrainerEngine

        torch.set_num_threads(threads)
        send_frame(self._connection, ChildStarted(os.getpid(), threads))
        return TrainerEngine()

    def serve(self) -> None:
        """Answer calls until the parent dies, or until a call leaves an undefined state."""
        while True:
            call = self._queue.next()
            reply = self._answer(call)
            send_frame(self._connection, reply)
            if reply.kind == FailureKind.CRASHED:
                sys.exit(1)

    def _answer(self, call: Call) -> CallReply:
        self._faults.begin(call.operation)
        try:
            return CallReply(call.number, body=self._run(call))
        except TrainerFailure as error:
            return CallReply(call.number, kind=error.kind, error=str(error))
        except (ConfigError, UnusableModelError) as error:
            return CallReply(call.number, kind=UNUSABLE, error=str(error))
        except PsycheError as error:
            return CallReply(call.number, kind=REFUSED, error=str(error))
        except Exception as error:  # noqa: BLE001 - every error is reported to the parent
            return self._report(call, error)

    def _report(self, call: Call, error: Exception) -> CallReply:
        from psyche.modeling.device import is_out_of_memory

        if is_out_of_memory(error):
            text = f"out of memory in {call.operation}: {error}; restart the trainer, or use a smaller model"
            return CallReply(call.number, kind=FailureKind.OUT_OF_MEMORY, error=text)
        return CallReply(call.number, kind=FailureKind.CRASHED, error=traceback.format_exc()[-ERROR_CHARACTERS:])

    def _run(self, call: Call) -> Reply:
        def beat() -> None:
            send_frame(self._connection, Beat(call.number))
            self._faults.strike()

        match request := call.request:
            case CheckRequest():
                return self._engine.check(request, beat)
            case MemoryRequest():
                return self._engine.predict_memory(request, beat)
            case LoadRequest():
                return self._engine.load(request, beat)
            case TrainRequest() | MergeRequest() | AuditRequest() | ScoreRequest() | OpenRequest():
                return self._work(
                    request, lambda: self._beat_train(call, beat), partial(self._queue.has_time, call.number)
                )
            case ApplyRequest():
                beat()
                if self._faults.is_flipped:
                    self._engine.spoil()
                return self._engine.apply(request)
            case SnapshotRequest():
                return self._engine.snapshot(request, beat)

    def _work(
        self,
        request: TrainRequest | MergeRequest | AuditRequest | ScoreRequest | OpenRequest,
        beat: Callable[[], None],
        has_time: Callable[[float], bool],
    ) -> Reply:
        match request:
            case TrainRequest():
                return self._engine.train(request, beat, has_time)
            case MergeRequest():
                return self._engine.merge(request, beat, has_time)
            case AuditRequest():
                return self._engine.audit(request, beat)
            case ScoreRequest():
                return self._engine.score(request, beat, has_time)
            case OpenRequest():
                return self._engine.open(request)

    def _beat_train(self, call: Call, beat: Callable[[], None]) -> None:
        from psyche.modeling.trainer.batch import Cancelled

        beat()
        if self._queue.is_cancelled(call.number):
            raise Cancelled


def run_forked(
    connection: socket.socket, log: Connection, threads: int, environment: dict[str, str], folder: str
) -> None:
    """The same process, forked by a trainer host: relative paths refer to `folder`, where its client runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    die_with_parent(os.getppid())
    for output in (1, 2):
        os.dup2(log.fileno(), output)
    os.environ.update(environment)
    os.chdir(folder)
    CallLoop(connection, threads).serve()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="psyche-trainer", description="Started by Psyche itself.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited end of a socket pair")
    parser.add_argument("--parent", type=int, required=True, help="the parent's process id")
    parser.add_argument("--threads", type=int, required=True, help="CPU threads of torch")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    CallLoop(socket.socket(fileno=arguments.fd), arguments.threads).serve()


if __name__ == "__main__":
    main()
