"""A rank's own process, `python -m psyche.modeling.trainer.ranks.process`: it makes the calls that rank 0 sends.

With `--rank` it is one of the processes that a trainer starts on its machine. Without, it is a machine's sidecar: it
takes as many ranks as it has devices, and starts the others itself.
"""

import argparse
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from psyche.modeling.trainer.child import die_with_parent
from psyche.modeling.trainer.fault import FaultInjector, read_faults

if TYPE_CHECKING:
    from psyche.modeling.trainer.ranks.group import Group
    from psyche.modeling.trainer.ranks.shard import Shard


def serve(group: "Group") -> None:
    """Make the calls of rank 0 until it ends."""
    from psyche.errors import TrainerError
    from psyche.modeling.trainer.batch import Cancelled
    from psyche.modeling.trainer.ranks.shard import build_shard

    shard: Shard | None = None
    faults = FaultInjector(read_faults(group.rank))
    while True:
        call, arguments = group.receive()
        faults.begin(call)
        faults.strike()
        if call == "build":
            del shard  # before there is another
            shard = build_shard(group, *arguments)
        else:
            with suppress(Cancelled, TrainerError):  # of all ranks alike: rank 0 reports it
                getattr(shard, call)(*arguments)


def join(host: str, port: int, rank: int | None, device: str) -> "Group":
    from psyche.modeling.device import list_devices, try_device
    from psyche.modeling.trainer.ranks import group as groups

    devices = list_devices(device)
    try_device(devices[0])  # before anything counts on it
    store = groups.connect(host, port)
    data, tensor = map(int, store.get(groups.SIZES).split())
    if rank is None:
        rank = store.add(groups.TAKEN, len(devices)) - len(devices)
        if rank + len(devices) > data * tensor:
            store.add(groups.TAKEN, -len(devices))
            sys.exit(
                f"sidecar: the trainer at {host}:{port} has room for {max(0, data * tensor - rank)} more ranks, and "
                f"--device {device} is {len(devices)} devices; name fewer, or start the client with more ranks"
            )
        groups.start_ranks((host, port), rank + 1, devices)
    groups.end_with_store(store, rank)
    store.add(groups.JOINED, 1)
    return groups.Group(store, rank, data, tensor, devices[0])


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="psyche-rank", description="Started by Psyche itself.")
    parser.add_argument("--store", nargs=2, required=True, help="host and port of rank 0's store")
    parser.add_argument("--parent", type=int, required=True, help="the parent's process id")
    parser.add_argument("--rank", type=int, help="this process's rank; a sidecar takes the next ones")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True, help="CPU threads of torch")
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    import torch

    torch.set_num_threads(arguments.threads)
    group = join(arguments.store[0], int(arguments.store[1]), arguments.rank, arguments.device)
    try:
        serve(group)
    except RuntimeError as error:
        if "gloo/transport" not in str(error):
            raise
        # In the middle of a call, the line is often lost before the store is seen to be gone.
        sys.exit(f"rank {group.rank}: the line to the others is lost: the trainer or one of its ranks has ended")


if __name__ == "__main__":
    main()
