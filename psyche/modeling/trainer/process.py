"""The trainer in a supervised child process, which turns crashes, hangs and lack of memory into errors (F20, F21).

Importing this module loads no torch: the client's parent process stays small.
"""

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import msgspec
import trio

from psyche.errors import TrainerError, UnusableModelError, WireError
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.modeling.trainer.fault import VARIABLE as FAULT_VARIABLE
from psyche.modeling.trainer.frames import (
    MAX_FRAME_BYTES,
    UNUSABLE,
    Call,
    CallReply,
    Cancel,
    ChildStarted,
    Prepare,
    Shorten,
    decode_to_parent,
    encode,
)
from psyche.wire.line.framing import ConnectionLost, FrameStream, FrameTimeout
from psyche.wire.trainer import (
    ApplyReply,
    ApplyRequest,
    AuditReply,
    AuditRequest,
    CheckReply,
    CheckRequest,
    LoadReply,
    LoadRequest,
    MemoryReply,
    MemoryRequest,
    MergeRequest,
    OpenReply,
    OpenRequest,
    Reply,
    Request,
    ScoreReply,
    ScoreRequest,
    SnapshotReply,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
)

HOST_VARIABLE: Final = "PSYCHE_TRAINER_HOST"  # path of the socket of this machine's trainer host
SEND_TIMEOUT_S: Final = 30.0  # the child's reading thread reads at once; a longer wait means that it hangs
CANCEL_TIMEOUT_S: Final = 2.0
HOST_TIMEOUT_S: Final = 10.0
REAP_TIMEOUT_S: Final = 5.0  # for the exit after SIGKILL; longer only if the kernel itself is stuck
HISTORY: Final = 32  # calls remembered per operation
KNOWN: Final = 3  # calls after which the median is meaningful
LOG_TAIL_BYTES: Final = 2_000
BUILDING: Final = ("check", "memory", "load")  # transformers builds and tries a model, and sends no beats meanwhile
SCORING, AUDITING, FOREGROUND = range(3)  # a call ends those of lower rank at their next micro-batch


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """Limits in seconds of silence; a trainer sends a beat at every micro-batch and every tensor.

    `start_s` bounds the start of the process (imports), `load_s` a load and what is asked before it, which
    send no beats for long, `unknown_s` any other call before its durations are known. `floor_s` keeps a swapping or
    overloaded machine from looking like a hang.
    """

    start_s: float = 180.0
    load_s: float = 600.0
    unknown_s: float = 120.0
    floor_s: float = 10.0


class Watchdog:
    """The time limit of a trainer's silence, after which it counts as hung (F21)."""

    def __init__(self, limits: WatchdogLimits) -> None:
        self.limits = limits
        self._seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def note(self, operation: str, seconds: float) -> None:
        self._seconds[operation].append(seconds)

    def get_limit_s(self, operation: str) -> float:
        """The longest silence allowed while `operation` runs.

        For a train step it is twice the median of the last 32 steps, at least the floor. Other operations vary with
        their input, so for them it is four times the longest call seen, at least `unknown_s`.
        """
        if operation in BUILDING:
            return self.limits.load_s
        seen = self._seconds[operation]
        if operation != "train":
            return max(self.limits.unknown_s, 4 * max(seen, default=0.0))
        if len(seen) < KNOWN:
            return self.limits.unknown_s
        return max(self.limits.floor_s, 2 * statistics.median(seen))


class HostedProcess:
    """A trainer forked by the host at `path`, with what is used of `subprocess.Popen`; it dies with its host.

    Raises OSError if the host is gone or does not answer.
    """

    def __init__(self, path: str, trainer: int, log: int, threads: int, environment: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self._connection = Client(path, "AF_UNIX")
        try:
            self._connection.send_bytes(msgspec.json.encode((threads, dict(environment), str(Path.cwd()))))
            for descriptor in (trainer, log):
                send_handle(self._connection, descriptor, os.getpid())
            if not self._connection.poll(HOST_TIMEOUT_S):
                raise TimeoutError("no answer")
            self.pid: int = self._connection.recv()
        except (OSError, EOFError) as error:
            self._connection.close()
            raise OSError(f"the trainer host forks nothing: {error}") from error

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout: float = HOST_TIMEOUT_S) -> int | None:
        """The exit status, which the host reports shortly after the end."""
        if self.returncode is None and self._connection.poll(timeout):
            try:
                self.returncode = self._connection.recv()
            except (OSError, EOFError):
                self.returncode = -signal.SIGKILL  # by the kernel, with its host
            self._connection.close()
        return self.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


Process = subprocess.Popen[bytes] | HostedProcess
_RANKS: Final[dict[type[Request], int]] = {ScoreRequest: SCORING, AuditRequest: AUDITING}
_CANCELLED: Final[dict[type[Request], Reply]] = {
    ScoreRequest: ScoreReply(rows=(), seconds=0.0, cancelled=True),
    AuditRequest: AuditReply(targets=(), seconds=0.0, cancelled=True),
}


class _Child:
    def __init__(self, process: Process, stream: FrameStream) -> None:
        self.process = process
        self.stream = stream

    async def end(self) -> int | None:
        """Kill and reap it; return its exit status (negative: the signal), or None if it does not end."""
        with trio.move_on_after(REAP_TIMEOUT_S) as scope:
            scope.shield = True
            await self.stream.aclose()
            if self.process.poll() is None:
                self.process.kill()
            await wait_exit(self.process)
        return self.process.returncode


async def wait_exit(process: Process) -> None:
    """Wait for the exit without blocking the event loop; the caller sets the time limit."""
    if process.poll() is not None:
        return
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:  # the host has already reaped it
        process.wait()
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)
    process.wait()


def _describe_status(status: int | None) -> str:
    if status is None:
        return "still running after SIGKILL"
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    return f"killed by {name}" + (" (the kernel does that when memory runs out)" if name == "SIGKILL" else "")


class TrainerProcess:
    """Implements `wire.ports.Trainer` for a child process that it starts, watches and kills.

    The first call starts the child unless `start` has. After a failure every call raises until
    `restart`; the caller then loads its snapshot again. The caller divides the cores among its clients (`threads`).
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        limits: WatchdogLimits | None = None,
    ) -> None:
        if threads < 1:
            raise TrainerError(f"trainer: threads is {threads}, must be at least 1")
        self._threads = threads
        self._log_path = log_path
        self._environment = dict(environment or {})
        self._watchdog = Watchdog(limits or WatchdogLimits())
        self._lock = trio.Lock()
        self._child: _Child | None = None
        self._failed = ""  # why no child is running
        self._number = 0
        self._training = -1  # number of the train call that runs or waits for its turn
        self._background = (-1, FOREGROUND)  # number and rank of the audit or score that runs
        self._newest = [-1] * (FOREGROUND + 1)  # number of the newest call of each rank

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    async def start(self) -> None:
        """Start the child and wait until it has imported what it needs (at most `limits.start_s`)."""
        async with self._lock:
            await self._ensure_started()

    async def restart(self) -> None:
        """Kill the child, if any, and start a fresh one with nothing loaded."""
        async with self._lock:
            await self._end()
            self._failed = ""
            await self._ensure_started()

    async def check(self, request: CheckRequest) -> CheckReply:
        return await self._call(request)

    async def predict_memory(self, request: MemoryRequest) -> MemoryReply:
        return await self._call(request)

    async def load(self, request: LoadRequest) -> LoadReply:
        return await self._call(request)

    async def train(self, request: TrainRequest) -> TrainReply:
        """See `TrainerEngine.train`.

        A caller that needs the outcome of the batch calls `cancel` and keeps waiting; if the waiting task is
        cancelled instead, the batch also ends, but possibly only after its payload was made.
        """
        return await self._call(request)

    async def merge(self, request: MergeRequest) -> TrainReply:
        """See `TrainerEngine.merge`; it is cancelled as `train` is."""
        return await self._call(request)

    async def apply(self, request: ApplyRequest) -> ApplyReply:
        return await self._call(request)

    async def snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        return await self._call(request)

    async def open(self, request: OpenRequest) -> OpenReply:
        return await self._call(request)

    async def audit(self, request: AuditRequest) -> AuditReply:
        """See `TrainerEngine.audit`; any other call but a score ends it at its next micro-batch."""
        return await self._call(request)

    async def score(self, request: ScoreRequest) -> ScoreReply:
        """See `TrainerEngine.score`; any other call ends it at its next pass, which lasts at most 50 ms."""
        return await self._call(request)

    async def prepare(self, payload: bytes) -> None:
        """Have a payload decoded while other calls run; without effect if no child is running."""
        if (child := self._child) is None:
            return
        with trio.move_on_after(2 * SEND_TIMEOUT_S) as scope, contextlib.suppress(ConnectionLost, FrameTimeout):
            scope.shield = True  # as for calls; a running one raises the failure
            await child.stream.send(encode(Prepare(payload)), SEND_TIMEOUT_S)

    async def cancel(self) -> None:
        await self._tell(max(self._training, self._background[0]), Cancel)

    async def shorten(self, within_s: float) -> None:
        await self._tell(self._training, lambda number: Shorten(number, within_s))

    async def _tell(self, number: int, make: Callable[[int], Cancel | Shorten]) -> None:
        """Tell the child something about the call with this number, if there is one."""
        if (child := self._child) is None or number < 0:
            await trio.lowlevel.checkpoint()
            return
        try:
            # the call itself may still be in transit: it has megabytes, and a busy child reads it slowly
            await child.stream.send(encode(make(number)), SEND_TIMEOUT_S)
        except (ConnectionLost, FrameTimeout):
            return  # the running call raises the failure

    async def stop(self) -> None:
        """Kill the child at once, whatever it is doing; waiting calls raise `TrainerFailure` (stopped)."""
        self._failed = "it was stopped"
        await self._end()

    async def _call(self, request: Request) -> Any:
        self._number += 1
        number, rank = self._number, _RANKS.get(type(request), FOREGROUND)
        if isinstance(request, TrainRequest | MergeRequest):
            self._training = number
        try:
            self._newest[rank] = number
            if self._background[1] < rank:  # training comes first
                await self._tell(self._background[0], Cancel)
            async with self._lock:
                child = await self._ensure_started()
                if max(self._newest[rank + 1 :], default=-1) > number:  # it came while this one waited
                    return _CANCELLED[type(request)]
                if rank < FOREGROUND:
                    self._background = number, rank
                return await self._exchange(child, Call(number, request))
        finally:
            if self._training == number:
                self._training = -1
            if self._background[0] == number:
                self._background = -1, FOREGROUND

    async def _exchange(self, child: _Child, call: Call) -> Reply | None:
        started, operation = time.monotonic(), call.operation
        limit_s = self._watchdog.get_limit_s(operation)
        try:
            with trio.move_on_after(2 * SEND_TIMEOUT_S) as scope:
                scope.shield = True  # half a frame would break the stream; the child reads at once
                await child.stream.send(encode(call), SEND_TIMEOUT_S)
            reply = await self._receive(child, call.number, limit_s)
        except FrameTimeout:
            await self._fail(FailureKind.HUNG, operation, f"no sign of life within {limit_s:.0f} s")
        except (ConnectionLost, WireError) as error:
            await self._fail(FailureKind.CRASHED, operation, str(error))
        except trio.Cancelled:
            with trio.move_on_after(CANCEL_TIMEOUT_S) as scope:
                scope.shield = True
                await self._tell(call.number, Cancel)
            raise
        if reply.error:
            await self._raise(operation, reply)
        self._watchdog.note(operation, time.monotonic() - started)
        return reply.body

    async def _receive(self, child: _Child, number: int, silence_s: float) -> CallReply:
        """Wait for the reply to call `number`; each beat restarts the time limit; drop replies to abandoned calls."""
        while True:
            match decode_to_parent(await child.stream.receive(silence_s)):
                case CallReply(number=answered) as reply if answered == number:
                    return reply
                case _:
                    continue

    async def _raise(self, operation: str, reply: CallReply) -> NoReturn:
        if reply.kind == FailureKind.CRASHED:
            await self._fail(FailureKind.CRASHED, operation, reply.error)
        if reply.kind in set(FailureKind):
            raise TrainerFailure(FailureKind(reply.kind), reply.error)
        raise UnusableModelError(reply.error) if reply.kind == UNUSABLE else TrainerError(reply.error)

    async def _fail(self, kind: FailureKind, operation: str, reason: str) -> NoReturn:
        """Kill and reap the child, and report how it ended."""
        if self._child is None:  # `stop` was called meanwhile
            raise TrainerFailure(FailureKind.STOPPED, f"trainer: stopped during {operation}")
        child = self._child
        status = child.process.poll()
        await self._end()
        if kind is FailureKind.CRASHED:
            reason = f"{reason} ({_describe_status(child.process.returncode if status is None else status)})"
        self._failed = f"it {kind.value} during {operation}"
        text = f"trainer {kind.value} during {operation}: {reason}; start it again: it goes on from the newest snapshot"
        raise TrainerFailure(kind, text + self._read_log_tail())

    def _read_log_tail(self) -> str:
        if self._log_path is None or not self._log_path.exists():
            return ""
        with self._log_path.open("rb") as file:
            file.seek(max(0, self._log_path.stat().st_size - LOG_TAIL_BYTES))
            tail = file.read().decode(errors="replace").strip()
        return f"\n{tail}" if tail else ""

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    async def _ensure_started(self) -> _Child:
        if self._child is not None:
            return self._child
        if self._failed:
            raise TrainerFailure(FailureKind.STOPPED, f"trainer: not running, {self._failed}; restart it first")
        self._child = child = self._spawn()
        try:
            started = decode_to_parent(await child.stream.receive(self._watchdog.limits.start_s))
            if not isinstance(started, ChildStarted):
                raise WireError(f"trainer: sent {type(started).__name__} before ChildStarted")
        except FrameTimeout:
            await self._fail(FailureKind.HUNG, "start", f"did not start within {self._watchdog.limits.start_s:.0f} s")
        except (ConnectionLost, WireError) as error:
            await self._fail(FailureKind.CRASHED, "start", str(error))
        except trio.Cancelled:
            await self._end()
            raise
        return child

    def _spawn(self) -> _Child:
        """Start the process from this thread: the kernel kills the child when the thread that started it ends."""
        ours, theirs = socket.socketpair()
        command = [
            sys.executable, "-X", "faulthandler", "-m", "psyche.modeling.trainer.child",
            "--fd", str(theirs.fileno()), "--parent", str(os.getpid()), "--threads", str(self._threads),
        ]  # fmt: skip
        # torch reads the first two before `set_num_threads` can be called; nothing is fetched from the Hub
        settings = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self._threads)) | {"HF_HUB_OFFLINE": "1"}
        with theirs, self._open_log() as log:
            process = self._spawn_hosted(theirs, log, settings) or subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **settings, **self._environment},
                process_group=0,  # Ctrl-C in a terminal goes to the parent only
            )
        ours.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        return _Child(process, FrameStream(stream, MAX_FRAME_BYTES))

    def _spawn_hosted(self, theirs: socket.socket, log: IO[bytes], settings: Mapping[str, str]) -> Process | None:
        """A trainer forked by the host that the environment names; None if there is no host, or it has died."""
        host = os.environ.get(HOST_VARIABLE)
        if not host:
            return None
        faults = {FAULT_VARIABLE: os.environ.get(FAULT_VARIABLE, "")}
        environment = {**settings, **faults, **self._environment}
        try:
            return HostedProcess(host, theirs.fileno(), log.fileno(), self._threads, environment)
        except OSError:
            return None

    def _open_log(self) -> IO[bytes]:
        if self._log_path is None:
            return open(os.dup(2), "wb", buffering=0)  # noqa: PTH123 - a descriptor, not a path
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        return self._log_path.open("ab", buffering=0)
