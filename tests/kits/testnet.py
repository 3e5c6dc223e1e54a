"""`psyche local-testnet start` as a process, and what it writes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from kits.cluster import DEADLINE_S
from kits.leftovers import MARK, POLL_S, get_processes
from psyche.modeling.trainer.process import HOST_VARIABLE
from psyche.telemetry.events import Line, read_lines


@dataclass
class CalledTestnet:
    process: subprocess.Popen[bytes]
    token: str
    folder: Path
    output: Path

    def read(self, node: str) -> list[Line]:
        return list(read_lines(self.folder / "events" / node / "events.jsonl"))

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true.

        Raises:
            AssertionError: it never was, or the command ended before; with what it had printed.
        """
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, f"ended before {what}\n{self.describe()}"
            assert time.monotonic() < deadline, f"waited {DEADLINE_S:.0f} s for {what}\n{self.describe()}"
            time.sleep(POLL_S)

    def wait(self) -> int:
        try:
            return self.process.wait(timeout=2 * DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it never ended\n{self.describe()}") from None

    def describe(self) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-30:])


@contextmanager
def call_testnet(folder: Path, config: Path, *arguments: str, has_own_host: bool = True) -> Iterator[CalledTestnet]:
    """The command, in a process group of its own; all of it is dead when the block ends.

    Without `has_own_host` the host of the tests forks its trainers, which saves an import of torch.
    """
    folder.mkdir(exist_ok=True)
    token, output = uuid4().hex, folder / "output.txt"
    command = [sys.executable, "-m", "psyche", "local-testnet", "start", "--config-path", str(config)]
    command += ["--run-dir", str(folder / "run"), "--cache-dir", str(folder / "cache"), "--no-sample", "--keep"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **({HOST_VARIABLE: ""} if has_own_host else {}), MARK: f"{token}/testnet/1"},
            start_new_session=True,
        )
    try:
        yield CalledTestnet(process, token, folder / "run", output)
    finally:
        for pid in get_processes(token):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
