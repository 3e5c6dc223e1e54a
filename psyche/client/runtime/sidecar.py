"""`psyche client sidecar`: lends this machine's devices to a trainer on another machine, as ranks of its group."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import trio

from psyche.modeling.device_name import parse_rendezvous
from psyche.modeling.trainer.process import wait_exit

RETRY_S = 5.0


async def run_sidecar(rendezvous: str, device: str, threads: int, say: Callable[[str], None]) -> NoReturn:
    """Start the ranks, and start them again whenever they end: their trainer has done so too, or comes later."""
    host, port = parse_rendezvous(rendezvous)
    command = [
        sys.executable, "-m", "psyche.modeling.trainer.ranks.process", "--store", host, str(port), "--device", device,
        "--threads", str(threads or os.cpu_count() or 1), "--parent", str(os.getpid()),
    ]  # fmt: skip
    while True:
        say(f"lending {device} to the trainer at {rendezvous}")
        process = _start(command)
        try:
            await wait_exit(process)
        finally:
            process.kill()
            process.wait()
        say(f"the ranks have ended, as their trainer has or they say above; again in {RETRY_S:.0f} s")
        await trio.sleep(RETRY_S)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """From this thread: the kernel ends the ranks when the thread that started them ends."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
