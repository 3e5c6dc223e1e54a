"""Finds processes that a test has left running: by a mark in their environment, or by their parent."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from psyche.modeling.trainer.process import HOST_VARIABLE

MARK: Final = "PSYCHE_E2E"  # in the environment of every process of a test, and of its descendants
GONE_S: Final = 60.0  # for the kernel to end the children of a dead process, on a busy machine
POLL_S: Final = 0.05
LEAVE_S: Final = 5.0


def get_allowed_s() -> float:
    """How long what is interrupted may take to leave: five seconds, more where the machine has more to do than it can.

    F26 says five.
    """
    return LEAVE_S * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def get_processes(mark: str) -> list[int]:
    """Living processes whose environment carries this mark."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(part.startswith(wanted) for part in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def describe_processes(pids: Iterable[int]) -> str:
    lines: list[str] = []
    for pid in pids:
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"{pid}: {command[:200]}")
    return "; ".join(lines)


def get_children(parent: int) -> dict[int, str]:
    """Pid and state (R, S, Z for zombie, and so on) of a process's children."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, ppid = path.read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent:
                found[int(path.parent.name)] = state
    return found


def get_host() -> int | None:
    """The process that forks trainers for the tests' clients, if one runs (see `conftest.py`)."""
    wanted = os.environ.get(HOST_VARIABLE, "")
    for pid in get_children(os.getpid()):
        with suppress(OSError):
            if wanted and wanted.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    return None


def get_fork_servers() -> list[int]:
    """The children of the host, of which one forks the trainers."""
    host = get_host()
    return [] if host is None else list(get_children(host))


def get_hosted_trainers() -> list[int]:
    """Trainers that were forked for the host; they do not carry the mark of the client that asked for them."""
    return sorted(pid for server in get_fork_servers() for pid in get_children(server))


async def assert_nothing_left(mark: str) -> None:
    """Assert that no process has this mark, after giving the kernel time to end them."""
    await _assert_none(lambda: get_processes(mark))


async def assert_none_of(trainers: Iterable[int]) -> None:
    """Assert that none of these trainers runs, whichever process forked them."""
    wanted = set(trainers)
    await _assert_none(lambda: [pid for pid in wanted if is_trainer(pid)])


def is_trainer(pid: int) -> bool:
    """Whether the process with this pid is a trainer: the pid may have been reused."""
    with suppress(OSError):
        return b"psyche.modeling.trainer." in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


async def _assert_none(find: Callable[[], list[int]]) -> None:
    deadline = trio.current_time() + GONE_S
    while left := find():
        assert trio.current_time() < deadline, f"still there: {describe_processes(left)}"
        await trio.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_dead(pid: int, timeout_s: float = 30.0) -> None:
    with trio.fail_after(timeout_s):
        while is_alive(pid):
            await trio.sleep(POLL_S)
