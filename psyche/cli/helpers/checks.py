"""The checks of `psyche doctor`. Each examines one thing within a time limit and says what to do about it."""

import ctypes
import functools
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from psyche.cli.helpers.common import run_async
from psyche.cli.helpers.errors import get_install_command
from psyche.errors import ConfigError, DataError, StorageError
from psyche.telemetry import types
from psyche.telemetry.events import read_entries
from psyche.telemetry.text import format_bytes, format_number
from psyche.wire.line.descriptors import WAY_OUT, get_limit, raise_limit

if TYPE_CHECKING:
    from psyche.config.load import LoadedRun
    from psyche.storage.port import StorageOptions

IMPORT_TIMEOUT_S: Final = 120  # a cold torch on a slow disk
PLACE_TIMEOUT_S: Final = 60
WARN_DISK_BYTES: Final = 20 << 30
FAIL_DISK_BYTES: Final = 2 << 30
WARN_MEMORY_BYTES: Final = 4 << 30  # three demo clients with their trainers take 3 GB
WARN_FILES: Final = 1_024
OLDEST_YEAR: Final = 2025  # a clock before this one was never set
STA_UNSYNC: Final = 0x40
TIMEX_BYTES: Final = 208
BASE: Final = ("blake3", "cryptography", "msgspec", "numpy", "pydantic", "structlog", "trio", "typer", "zstandard")

TORCH_PROBE: Final = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({
    "version": torch.__version__, "threads": torch.get_num_threads(),
    "device": torch.cuda.get_device_name(0) if cuda else "cpu",
    "memory": torch.cuda.get_device_properties(0).total_memory if cuda else 0,
    "count": torch.cuda.device_count() if cuda else 0, "sum": float(torch.ones(8).sum()),
}))
"""
LIBP2P_PROBE: Final = """
import json
from importlib import metadata
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
pair = create_new_key_pair()
assert pair.public_key.verify(b"m", pair.private_key.sign(b"m"))
print(json.dumps({"version": metadata.version("libp2p")}))
"""


class CheckVerdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


OK, WARN, FAIL = CheckVerdict


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `advice` is what to do, empty if nothing needs to be done."""

    name: str
    verdict: CheckVerdict
    found: str
    advice: str = ""


def format_check(check: Check) -> str:
    """Format a check as `ok    python    3.11.7`, with the advice below."""
    line = f"{check.verdict:<5} {check.name:<9} {check.found}"
    return f"{line}\n{'':<16}-> {check.advice}" if check.advice else line


def get_checks(data_dir: Path, port: int, *, is_server: bool = False) -> list[Callable[[], Check]]:
    log = data_dir / "events.jsonl"
    return [
        check_python,
        check_packages,
        check_machine,
        *([] if is_server else [check_torch, check_libp2p]),
        functools.partial(check_clock, time.time),
        functools.partial(check_disk, data_dir),
        check_open_files,
        functools.partial(check_port, port),
        check_addresses,
        *([functools.partial(check_arithmetic, log)] if log.exists() else []),
    ]


def check_python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("python", OK, found)
    return Check("python", FAIL, found, "use Python 3.11, 3.12 or 3.13")


def check_packages() -> Check:
    """Check that the packages all commands need are installed, without importing them."""
    missing = [name for name in BASE if not _is_installed(name)]
    if missing:
        return Check("packages", FAIL, f"missing: {', '.join(missing)}", get_install_command())
    return Check("packages", OK, ", ".join(f"{name} {metadata.version(name)}" for name in BASE))


def check_machine() -> Check:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    found = f"{platform.system()} {platform.machine()}, {format_number(cores, 'core')}, {_gigabytes(memory)} of memory"
    if platform.system() != "Linux":
        return Check("machine", FAIL, found, "Psyche runs on Linux; a container will do")
    if memory < WARN_MEMORY_BYTES:
        return Check("machine", WARN, found, "a client needs about 1 GB besides the model: run one at a time")
    return Check("machine", OK, found)


def check_torch() -> Check:
    """torch is loaded in a process of its own: a broken driver must not end the doctor."""
    facts, problem = _probe(TORCH_PROBE)
    if facts is None:
        return Check("torch", FAIL, problem, get_install_command())
    device = facts["device"]
    if facts["count"]:
        return Check("torch", OK, f"{facts['version']}, {facts['count']} x {device}, {_gigabytes(facts['memory'])}")
    if Path("/dev/nvidia0").exists():
        advice = "a GPU is there but torch cannot use it: compare `nvidia-smi` with torch's CUDA version"
        return Check("torch", WARN, f"{facts['version']} on the CPU", advice)
    return Check("torch", OK, f"{facts['version']} on the CPU, {facts['threads']} threads")


def check_libp2p() -> Check:
    facts, problem = _probe(LIBP2P_PROBE)
    if facts is None:
        return Check("libp2p", FAIL, problem, get_install_command())
    return Check("libp2p", OK, f"{facts['version']}, Ed25519 keys sign and verify")


def check_clock(now: Callable[[], float]) -> Check:
    """Deadlines are unix seconds that the coordinator gives: a clock minutes off reports late."""
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now()))
    if time.gmtime(now()).tm_year < OLDEST_YEAR:
        return Check("clock", FAIL, found, "set it: sudo timedatectl set-ntp true")
    synchronised = _is_clock_synchronised()
    if synchronised is None:
        return Check("clock", OK, f"{found}; the kernel does not say whether it is synchronised")
    if not synchronised:
        advice = "not synchronised: sudo timedatectl set-ntp true (in a container, on the host)"
        return Check("clock", WARN, found, advice)
    return Check("clock", OK, f"{found}, synchronised")


def check_disk(folder: Path) -> Check:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        return Check("disk", FAIL, f"{folder} is not a folder", "choose another place with --data-dir")
    free = shutil.disk_usage(folder).free
    found = f"{_gigabytes(free)} free at {folder}"
    if not os.access(folder, os.W_OK):
        return Check("disk", FAIL, f"{folder} is not writable", "choose another place with --data-dir")
    if free < FAIL_DISK_BYTES:
        return Check("disk", FAIL, found, f"at least {_gigabytes(FAIL_DISK_BYTES)} are needed")
    if free < WARN_DISK_BYTES:
        return Check("disk", WARN, found, "enough for small models; a checkpoint takes 16 bytes a parameter")
    return Check("disk", OK, found)


def check_arithmetic(log: Path) -> Check:
    """Whose calibration was off in the last epoch of a client's log (V6)."""
    own, found = "", list[types.ArithmeticOff]()
    for _, _, event in read_entries(log):
        match event:
            case types.ClientStarted():
                own = event.identity.hex()
            case types.ArithmeticOff():
                found = [event, *(one for one in found if one.epoch == event.epoch and one.key != event.key)]
            case types.StateChanged() if found and event.epoch > found[0].epoch:
                found = []
            case _:
                pass
    if not found:
        return Check("sums", OK, f"{log} names nobody whose results of the calibration are off")
    told = ", ".join(f"member {one.member} ({one.key[:8]}) by {one.distance:.1e}" for one in found)
    what = f"in epoch {found[0].epoch} the calibration was off: {told}"
    if any(own.startswith(one.key) for one in found):
        advice = "this machine is among them: test its memory, and install the packages of docs/install.md again"
        return Check("sums", FAIL, what, advice)
    return Check("sums", WARN, what, "these are other machines; tell their owners")


def check_open_files() -> Check:
    """Open files: each peer takes a few."""
    raise_limit()  # as server and client do
    if get_limit() < WARN_FILES:
        return Check("files", WARN, f"{get_limit()} open files allowed", WAY_OUT)
    return Check("files", OK, f"{get_limit()} open files allowed")


def check_port(port: int) -> Check:
    name = f"port {port}" if port else "a free port"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("0.0.0.0", port))  # noqa: S104 - what a client does
            listener.listen()
            chosen = listener.getsockname()[1]
    except OSError as error:
        advice = "choose another with --bind-p2p-port" if port else "this machine does not let programs listen"
        return Check("ports", FAIL, f"{name}: {error.strerror}", advice)
    return Check("ports", OK, f"can listen on {name}" + ("" if port else f" ({chosen})"))


def check_addresses() -> Check:
    addresses = get_outward_addresses()
    if not addresses:
        advice = "clients on this machine reach each other; others cannot reach this one"
        return Check("network", WARN, "no address but loopback", advice)
    return Check("network", OK, f"this machine is {', '.join(addresses)}; others must be able to reach it there")


def get_outward_addresses() -> list[str]:
    """The IPv4 address that the default route uses, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: connecting a datagram socket sends nothing
        except OSError:
            return []
        address = str(probe.getsockname()[0])
    return [] if address.startswith("127.") else [address]


def get_run_checks(run: "LoadedRun", storage: "StorageOptions") -> list[Callable[[], Check]]:
    """Whether the run's training fits into memory, and the places answer that its file names for model and data.

    Folders and servers are no places.
    """
    from psyche.core.state.state import DataLocationKind, DataType
    from psyche.data.provider import REMOTE_KINDS
    from psyche.forecast.workload import find_model_config
    from psyche.modeling.model_files import REMOTE, open_storage

    location = run.model.data_location

    async def look_at_model() -> str:
        place = open_storage(run.model.checkpoint, storage)
        assert place is not None, "a kind of `REMOTE`"
        async with aclosing(place):
            sizes = [file.size_bytes for file in await place.list_files()]
            return f"{place.address}: {format_number(len(sizes), 'file')}, {format_bytes(sum(sizes))}"

    async def look_at_data() -> str:
        from psyche.data.provider import open_remote_rows

        length, has_labels = run.model.max_seq_len, run.model.data_type is DataType.FINETUNING
        async with aclosing(
            open_remote_rows(location, storage, sequence_length=length, vocab_size=None, has_labels=has_labels)
        ) as rows:
            return (await rows.measure()).describe()

    checks: list[Callable[[], Check]] = [functools.partial(check_memory, run)] if find_model_config(run) else []
    if run.model.checkpoint.kind in REMOTE:
        checks.append(functools.partial(_check_place, "model", look_at_model))
    is_rows_here = location.kind is DataLocationKind.PREPROCESSED and run.resolve(location.address).exists()
    if location.kind in REMOTE_KINDS and not is_rows_here:
        checks.append(functools.partial(_check_place, "data", look_at_data))
    return checks


def check_memory(run: "LoadedRun") -> Check:
    """Whether training fits into what is free now, one sample at a time."""
    from psyche.forecast.workload import find_model_config
    from psyche.modeling.trainer.describe import predict_memory

    path = find_model_config(run)
    assert path is not None, "else nobody asks"
    try:
        reply = predict_memory(path, run.model, must_fit=True)
    except ConfigError as error:
        return Check("memory", FAIL, str(error), "see docs/install.md: how much memory training takes")
    if reply is None:
        return Check("memory", WARN, "not predicted: transformers is not installed", get_install_command())
    needed, free = format_bytes(sum(reply.parts.values())), format_bytes(reply.free_bytes)
    return Check("memory", OK, f"one sample at a time takes at most {needed}; {free} are free on {reply.device}")


def _check_place(name: str, look: Callable[[], Awaitable[str]]) -> Check:
    import trio

    async def look_in_time() -> str:
        with trio.fail_after(PLACE_TIMEOUT_S):
            return await look()

    advice = "see docs/data.md: addresses, tokens and credentials, hosts of private networks"
    try:
        return Check(name, OK, run_async(look_in_time))
    except trio.TooSlowError:
        return Check(name, FAIL, f"did not answer within {PLACE_TIMEOUT_S} s", advice)
    except (DataError, StorageError) as error:
        return Check(name, FAIL, str(error), advice)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _probe(program: str) -> tuple[dict[str, Any] | None, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"did not load within {IMPORT_TIMEOUT_S} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1]), ""
    problem = done.stderr.strip().splitlines()
    return None, problem[-1] if problem else f"ended with exit code {done.returncode}"


def _is_clock_synchronised() -> bool | None:
    """What the kernel's clock discipline says; None where it says nothing."""
    timex = (ctypes.c_char * TIMEX_BYTES)()  # modes 0: only read
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(timex) < 0:
        return None
    # struct timex: modes u32, pad, offset, freq, maxerror, esterror (long each), then status i32
    offset = ctypes.sizeof(ctypes.c_long) * 5
    status = ctypes.c_int.from_buffer(timex, offset).value
    return not status & STA_UNSYNC


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
