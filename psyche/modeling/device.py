"""Devices: their selection, their arithmetic, and out-of-memory errors."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import torch

from psyche.core.encoding.header import NumericClass
from psyche.errors import TrainerError
from psyche.wire.trainer import Devices

HOST: Final = torch.device("cpu")
IDLE: Final = "--offload moves nothing here: {device} computes in the host's memory"
# Where a control group of Linux says what it may use, uses, and can give up: of version 2, and of version 1.
_GROUP_FILES: Final = (
    ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def select_device(name: str) -> torch.device:
    """Select a device: "auto" (CUDA if available, otherwise CPU), "cpu", "mps", "cuda" or "cuda:N"."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise TrainerError(f"device {name!r}: unknown; use auto, cpu, mps, cuda or cuda:N") from error
    if device.type not in {"cpu", "mps", "cuda"}:
        raise TrainerError(f"device {name!r}: only cpu, mps and cuda are supported")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise TrainerError(f"device {name!r}: this machine has none; use cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise TrainerError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    return device


def list_devices(name: str) -> list[torch.device]:
    """All devices that a name means: "cuda" and "auto" are all GPUs, "cuda:0,2" these two."""
    kind, _, numbers = name.partition(":")
    if "," in numbers:
        return [select_device(f"{kind}:{number}") for number in numbers.split(",")]
    device = select_device(name)
    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def select_devices(asked: Devices) -> list[torch.device]:
    """This machine's devices for the ranks of a trainer; a CPU may have several ranks."""
    found = list_devices(asked.device)
    if found[0].type == "cpu":
        return found if asked.rendezvous else found * asked.ranks
    if found[0].type == "mps":
        raise TrainerError(f"--device {asked.device}: one device of this kind trains alone; leave out --*-parallelism")
    if len(found) < asked.ranks and not asked.rendezvous:
        raise TrainerError(
            f"--data-parallelism {asked.data_parallelism} times --tensor-parallelism {asked.tensor_parallelism} needs "
            f"{asked.ranks} devices, --device {asked.device} has {len(found)}; lower one of them, name more devices, "
            "or add another machine's with --rendezvous"
        )
    return found[: asked.ranks]


def try_device(device: torch.device) -> None:
    """Compute something on a device: a driver may show a GPU that torch cannot use."""
    try:
        torch.ones(8, device=device).sum().item()
    except Exception as error:  # torch raises errors of many kinds for a driver or a GPU that does not fit
        raise TrainerError(
            f"device {str(device)!r}: torch cannot compute on it: {error}; `psyche doctor` says what it finds"
        ) from error


def find_host(device: torch.device, *, offload: bool) -> torch.device | None:
    """Where a trainer of this device keeps what it does not compute with; None: on the device."""
    return HOST if offload and device.type == "cuda" else None


def allocate(shape: Sequence[int], device: torch.device, host: torch.device | None) -> torch.Tensor:
    """float32 zeros on the device, or if there is a host, there: in memory that a GPU can copy from by itself."""
    if host is None:
        return torch.zeros(shape, dtype=torch.float32, device=device)
    return torch.zeros(shape, dtype=torch.float32, device=host, pin_memory=torch.cuda.is_available())


def get_numeric_class(device: torch.device) -> NumericClass:
    """The arithmetic of gradients on a device: fp32 on a CPU, bf16 autocast on CUDA."""
    return NumericClass.BF16 if device.type == "cuda" else NumericClass.FP32


def autocast(device: torch.device, numeric_class: NumericClass | None = None) -> AbstractContextManager[object]:
    """The context manager for a forward pass in a device's own arithmetic, or in another class; masters stay fp32."""
    own = get_numeric_class(device) if numeric_class is None else numeric_class
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=own is NumericClass.BF16)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator raises a plain RuntimeError
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def get_free_bytes(device: torch.device) -> int:
    """The memory of a device that this process can still take."""
    if device.type == "cuda":
        release_memory(device)
        return torch.cuda.mem_get_info(device)[0]
    return get_available_bytes()


def get_available_bytes(root: Path = Path("/")) -> int:
    """The machine's available memory, or what the control groups of this process leave of it."""
    available = _read_table(root / "proc/meminfo")["MemAvailable:"] * 1024
    return max(0, min([available, *_list_left_bytes(root)]))


def _list_left_bytes(root: Path) -> Iterator[int]:
    """What each control group leaves to this process: limits hold for all groups below, so all above count."""
    groups = (root / "proc/self/cgroup").read_text().splitlines()
    names = {line.split(":", 2)[2].strip("/") for line in groups if line.split(":")[1] in ("", "memory")}
    for top, limit, usage, given_up in _GROUP_FILES:
        for place in {root / top / part for name in names for part in (name, *Path(name).parents)}:
            try:
                most, used = (place / limit).read_text().strip(), int((place / usage).read_text())
                cache = _read_table(place / "memory.stat").get(given_up, 0)
            except OSError:  # a group of the other version, or one that this container does not see
                continue
            if most != "max":
                yield int(most) - used + cache


def _read_table(path: Path) -> dict[str, int]:
    return {words[0]: int(words[1]) for line in path.read_text().splitlines() if len(words := line.split()) > 1}
