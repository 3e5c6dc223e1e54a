"""The ranks of one trainer: processes that train one model on several devices, and how rank 0 sends them its calls.

Rank 0 is the trainer's child. It starts the other ranks of its machine; those of other machines come by
`psyche client sidecar`. They meet at a `TCPStore`, as those of torchrun do: gloo between CPUs, NCCL between GPUs.
A rank that ends, ends the group; one that hangs is found by the watchdog of the trainer's parent.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import init_device_mesh

from psyche.modeling.device import select_devices, try_device
from psyche.modeling.device_name import parse_rendezvous
from psyche.modeling.trainer.failure import FailureKind, TrainerFailure
from psyche.wire.trainer import Devices

LOOPBACK: Final = "127.0.0.1"
JOIN_TIMEOUT_S: Final = 600.0  # for ranks of this machine: their imports, on a busy one
SIDECAR_TIMEOUT_S: Final = 3600.0  # people start them
STORE_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2
WATCH_S: Final = 5.0
LOST_S: Final = 60.0  # of silence, before all are there
IDLE: Final = timedelta(days=365)  # a rank waits for calls as long as its trainer does
SIZES, TAKEN, JOINED, ALIVE = "sizes", "taken", "joined", "alive"  # the last with a rank's number


class Group:
    """The process group of `data` x `tensor` ranks; those of one tensor-parallel group are neighbours."""

    def __init__(self, store: Store, rank: int, data: int, tensor: int, device: torch.device) -> None:
        self.rank, self.data, self.tensor, self.device = rank, data, tensor, device
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)
        try_device(device)
        backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=data * tensor, timeout=IDLE)
        # the axes that transformers expects
        names = ("pp", "dp_replicate", "fsdp", "tp")
        self.mesh = init_device_mesh(device.type, (1, 1, data, tensor), mesh_dim_names=names)

    @property
    def size(self) -> int:
        return self.data * self.tensor

    def describe(self) -> str:
        return f"{self.size} x {self.device.type}"

    def send(self, call: str, *arguments: object) -> None:
        """Have all other ranks make the same call; at other ranks nothing."""
        if self.rank:
            return
        try:
            dist.broadcast_object_list([(call, arguments)], 0, device=torch.device("cpu"))
        except RuntimeError as error:
            text = f"a rank has gone, or the line to its machine: {error}; its sidecar comes again by itself"
            raise RuntimeError(text) from error  # not one of ours: those refuse a call, and this ends the trainer

    def receive(self) -> tuple[str, tuple[Any, ...]]:
        calls: list[Any] = [None]
        dist.broadcast_object_list(calls, 0, device=torch.device("cpu"))
        return calls[0]

    def add(self, number: float) -> float:
        total = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def share(self, value: Any) -> list[Any]:
        """Everyone's value, at every rank."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Everyone's value at rank 0, nothing elsewhere."""
        values: list[Any] = [None] * self.size if self.rank == 0 else []
        dist.gather_object(value, values or None)
        return values

    def scatter(self, values: Sequence[Any]) -> Any:
        """The own one of the values that rank 0 has."""
        own: list[Any] = [None]
        dist.scatter_object_list(own, list(values) if self.rank == 0 else None)
        return own[0]


def open_group(asked: Devices, beat: Callable[[], None]) -> Group:
    """Start this machine's other ranks, wait for those of other machines, and meet them as rank 0."""
    devices = select_devices(asked)
    ranks = asked.ranks
    address = parse_rendezvous(asked.rendezvous) if asked.rendezvous else (LOOPBACK, 0)
    if not asked.rendezvous:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    listener = socket.create_server(address)
    address = address[0], listener.getsockname()[1]
    store = TCPStore(
        *address, ranks, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(),
        timeout=timedelta(seconds=STORE_TIMEOUT_S),
    )  # fmt: skip
    store.set(SIZES, f"{asked.data_parallelism} {asked.tensor_parallelism}")
    store.add(TAKEN, len(devices))
    start_ranks(address, 1, devices)
    _await_ranks(store, asked, ranks - 1, beat)
    return Group(store, 0, asked.data_parallelism, asked.tensor_parallelism, devices[0])


def connect(host: str, port: int) -> TCPStore:
    """Reach the store of rank 0."""
    timeout = timedelta(seconds=STORE_TIMEOUT_S)
    return TCPStore(host, port, None, is_master=False, wait_for_workers=False, timeout=timeout)


def _await_ranks(store: Store, asked: Devices, others: int, beat: Callable[[], None]) -> None:
    limit_s = SIDECAR_TIMEOUT_S if asked.rendezvous else JOIN_TIMEOUT_S
    deadline = time.monotonic() + limit_s
    heard: dict[int, tuple[int, float]] = {}
    while (joined := store.add(JOINED, 0)) < others:
        if time.monotonic() > deadline:
            advice = "start `psyche client sidecar` on the other machines" if asked.rendezvous else "try again"
            raise TrainerFailure(
                FailureKind.CRASHED, f"trainer: {joined} of {others} other ranks came in {limit_s:.0f} s; {advice}"
            )
        if lost := _find_lost(store, heard, others):
            text = f"trainer: rank {lost} has gone before all {others + 1} were there; start the client again"
            raise TrainerFailure(FailureKind.CRASHED, text)
        beat()
        time.sleep(POLL_S)


def _find_lost(store: Store, heard: dict[int, tuple[int, float]], others: int) -> int | None:
    """A rank that came, and has been silent since: a sidecar that was stopped, whose place nobody else can take."""
    now = time.monotonic()
    for rank in range(1, others + 1):
        count = store.add(f"{ALIVE}{rank}", 0)
        if count != heard.get(rank, (0, now))[0]:
            heard[rank] = count, now
    return next((rank for rank, (_, at) in heard.items() if now - at > LOST_S), None)


def start_ranks(address: tuple[str, int], first: int, devices: Sequence[torch.device]) -> None:
    """Start a process for each device but the first, which is this process's; this process ends when one of them does.

    `first` is the rank of the first one started. The cores are divided among all.
    """
    threads = max(1, torch.get_num_threads() // len(devices))
    torch.set_num_threads(threads)
    for rank, device in enumerate(devices[1:], first):
        command = [
            sys.executable, "-X", "faulthandler", "-m", "psyche.modeling.trainer.ranks.process",
            "--store", *map(str, address), "--parent", str(os.getpid()), "--rank", str(rank), "--device", str(device),
            "--threads", str(threads),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
        threading.Thread(target=_end_with, args=(process, rank), daemon=True).start()


def _end_with(process: subprocess.Popen[bytes], rank: int) -> None:
    status = process.wait()
    print(f"trainer: rank {rank} ended with status {status}; the group ends with it", file=sys.stderr)  # noqa: T201 - its log
    os._exit(1)


def end_with_store(store: TCPStore, rank: int) -> None:
    """Tell rank 0 that this one is alive; end this process when rank 0 is gone, whatever the main thread waits for."""
    own = store.clone()

    def watch() -> None:
        while True:
            try:
                own.add(f"{ALIVE}{rank}", 1)
            except Exception:  # noqa: BLE001 - torch raises errors of many kinds for a lost connection
                os._exit(1)
            time.sleep(WATCH_S)

    threading.Thread(target=watch, daemon=True).start()
