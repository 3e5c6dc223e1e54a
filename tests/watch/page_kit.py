"""A folder of event logs that a test goes on writing, and the page about it: served here, or by the command."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import trio
from kits.log import make

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.telemetry.types import Wait
from psyche.watch.app import Watcher
from psyche.watch.routes import Metrics, serve_page
from psyche.watch.sources import LogSource

NAMES = ("ada", "ben")


class Logs:
    """A run of two clients with a server, round by round; `unix` is the time of the next event."""

    def __init__(self, folder: Path, run_id: str = "run", unix: float = 1_800_000_000.0) -> None:
        self.folder, self.unix = folder, unix
        self._logs = {
            name: EventLog(folder / name / "events.jsonl", node=name, now=lambda: self.unix)
            for name in ("server", *NAMES)
        }
        for member, name in enumerate(NAMES):
            self.emit(name, make(types.ClientStarted, run_id=run_id))
            self.emit(name, make(types.Member, index=member))

    def emit(self, node: str, event: types.Event) -> None:
        self._logs[node].emit(event)

    def play(self, height: int, late: str = "") -> None:
        """A round in which the result of `late` does not come."""
        step = height + 1
        self.emit(
            "server", make(types.StateChanged, run_state=RunState.ROUND_TRAIN, height=height, step=step, members=2)
        )
        for name in NAMES:
            self.emit(name, make(types.RoundStarted, height=height))
            self.unix += 1
            if name != late:
                self.emit(
                    name, make(types.Trained, height=height, step=height, loss=5.0 - height / 10, tokens=64, seconds=1)
                )
        points = {"step": step, "total_steps": 100, "seconds": 2.0, "members": 2, "results": 2 - bool(late)}
        losses = {"loss": 5.0 - height / 10, "least": 4.5 - height / 10, "greatest": 5.5, "tokens_per_s": 64.0}
        over = make(types.RoundOver, height=height, unix=int(self.unix), tokens=128 * step, **points, **losses)
        self.emit("server", over)

    def wait(self, name: str, until: float | None = None) -> None:
        """It waits for the other one."""
        other = 1 - NAMES.index(name)
        self.emit(name, make(
            types.WaitStarted, what="others", wait=Wait.OTHERS_FINISHED, members=(other,), height=3, until=until,
            then="report without it",
        ))  # fmt: skip


@asynccontextmanager
async def open_page(folder: Path, metrics: Metrics | None = None) -> AsyncGenerator[tuple[httpx2.AsyncClient, Watcher]]:
    """The page of a folder, and a client that calls it by its address."""
    watcher = Watcher([LogSource(folder)])
    async with trio.open_nursery() as nursery, serve_page(watcher, "127.0.0.1", 0, metrics) as address:
        nursery.start_soon(watcher.run)
        with trio.fail_after(60):
            await watcher.is_read.wait()
            async with httpx2.AsyncClient(base_url=address, timeout=30) as client:
                yield client, watcher
        nursery.cancel_scope.cancel()


@contextmanager
def run_command(*words: object) -> Iterator[str]:
    """`psyche watch --web` as a process; gives the address that it prints."""
    command = [sys.executable, "-m", "psyche", "watch", *map(str, words), "--web", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"NO_COLOR": "1"})
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("page: "))
        yield line.split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def read_data(page: str) -> dict[str, object]:
    """The data inside a saved page."""
    text = page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    return json.loads(text)
