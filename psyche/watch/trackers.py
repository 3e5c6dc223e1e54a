"""Experiment trackers: a run in wandb, trackio, TensorBoard's files, or a CSV file, written row by row.

Each has a thread of its own, and reads the run's curve when it is ready for more: one that hangs holds up nothing else,
and keeps no rows waiting. The whole curve is written, however late the watcher starts.
"""

import csv
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from psyche.watch.app import Watcher
from psyche.watch.rows import KEYS, MEMBER_KEYS, Row, RowReader, name_runs
from psyche.wire.nursery import open_plain_nursery

WANDB_INIT_S: Final = 20.0
WANDB_FINISH_S: Final = 10.0
FINISH_S: Final = 120.0  # for the last rows, when all runs are finished
STOP_S: Final = 15.0  # for the last rows, when the user ends it
MAX_UNIX: Final = 1 << 40
SUFFIX: Final = ".psyche"  # of TensorBoard's files
Say = Callable[[str], None]


class Writer(Protocol):
    """Takes rows in a thread; may block."""

    def write(self, rows: Sequence[Row]) -> None: ...
    def close(self) -> None: ...


class CsvWriter:
    """A line for each round, and one for each member in it; the file is written anew from the first round."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._keys = (*KEYS, *MEMBER_KEYS)
        self._csv = csv.writer(self._file)
        self._csv.writerow(["run", "step", "unix", "member", *self._keys])

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for member, values in (("", row.values), *row.members.items()):
                figures = [values.get(key, "") for key in self._keys]
                self._csv.writerow([_defuse(row.run), row.step, row.unix, _defuse(member), *figures])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _defuse(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


class TensorBoardWriter:
    """A folder for each run below `folder`; files that a former watcher wrote into it are replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Any] = {}

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            run = self._runs.get(row.run) or self._open(row.run)
            for key, value in row.flatten().items():
                run.add_scalar(key, value, row.step, walltime=min(row.unix, MAX_UNIX))
        for run in self._runs.values():
            run.flush()

    def _open(self, name: str) -> Any:
        folder = self._folder / (re.sub(r"[^\w-]", "_", name) or "run")
        for former in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            former.unlink()
        self._runs[name] = _import_summary_writer()(str(folder), filename_suffix=SUFFIX)
        return self._runs[name]

    def close(self) -> None:
        for run in self._runs.values():
            run.close()


def _import_summary_writer() -> Any:
    """Import without PyTorch, which it would load to no end: 10 s and 800 MB."""
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]
    try:
        from tensorboardX import SummaryWriter
    finally:
        if sys.modules.get("torch") is None:
            del sys.modules["torch"]
    return SummaryWriter


class ServiceWriter:
    """wandb, or trackio, which takes the same calls; `open_run` gets a run's name and configuration."""

    def __init__(self, open_run: Callable[[str, dict[str, Any]], Any]) -> None:
        self._open_run = open_run
        self._runs: dict[str, Any] = {}

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row.run not in self._runs:
                config = {"run_id": row.run, "total_steps": row.total_steps}
                self._runs[row.run] = self._open_run(row.run, config)
            self._runs[row.run].log(row.flatten(), step=row.step)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """Where runs go in wandb; `run` is their name there, instead of their own."""

    project: str
    run: str = ""
    group: str = ""
    entity: str = ""

    def open_run(self, name: str, config: dict[str, Any], say: Say) -> Any:
        """Begin a run there, or, if wandb does not answer, in files that can be sent later."""
        import wandb

        settings = wandb.Settings(
            console="off", silent=True, x_disable_stats=True, init_timeout=WANDB_INIT_S, finish_timeout=WANDB_FINISH_S
        )  # fmt: skip
        given: dict[str, Any] = {
            "project": self.project, "name": self.run or name, "group": self.group or None,
            "entity": self.entity or None, "config": config, "settings": settings, "reinit": "create_new",
        }  # fmt: skip
        try:
            run = wandb.init(**given)
        except wandb.Error as error:
            say(f"--wandb-project: {' '.join(str(error).split())}; the run goes to files")
            run = wandb.init(**given, mode="offline")
        say(f"wandb: to send the run later: wandb sync {run.settings.sync_dir}" if run.offline else f"wandb: {run.url}")
        return run


def open_trackio(project: str, name: str, config: dict[str, Any]) -> Any:
    import trackio

    return trackio.init(project=project, name=name, config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False)


class Tracking:
    """Writes all runs of a watcher to one tracker, until all are finished or the caller is cancelled.

    Whatever it raises is told under the name of its option, and ends it alone.
    """

    def __init__(self, option: str, make: Callable[[Say], Writer]) -> None:
        self._option, self._make = option, make
        self._scope, self._waiting = trio.move_on_after(math.inf), trio.move_on_after(math.inf)
        self._scope.shield = True
        self._is_ending = False
        self._is_written = trio.Event()

    async def run(self, watcher: Watcher, say: Say) -> None:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(self._write, watcher, say)
            try:
                await watcher.is_ended.wait()
                self._end(FINISH_S)
                await self._is_written.wait()
            finally:
                self._end(STOP_S if watcher.is_read.is_set() else 0.0)

    def _end(self, within_s: float) -> None:
        self._is_ending = True
        self._scope.deadline = trio.current_time() + within_s
        self._waiting.cancel()

    async def _write(self, watcher: Watcher, say: Say) -> None:
        with self._scope:
            try:
                await self._write_all(watcher, say)
            except Exception as error:  # noqa: BLE001 - a tracker's library may raise anything, and ends nothing else
                reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
                say(f"{self._option}: {reason or type(error).__name__}; no more is written there")
        self._is_written.set()
        if self._scope.cancelled_caught and watcher.is_read.is_set():
            say(f"{self._option}: takes too long to take the last rows; they are left out")

    async def _write_all(self, watcher: Watcher, say: Say) -> None:
        await watcher.is_read.wait()
        writer: Writer = await _call(self._make, say)
        try:
            await self._follow(watcher, writer)
        finally:
            await _call(writer.close)

    async def _follow(self, watcher: Watcher, writer: Writer) -> None:
        readers = [RowReader(view) for view in watcher.views]
        is_last = False
        while not is_last:
            is_last = self._is_ending
            if is_last:
                await watcher.catch_up()
            async with watcher.hold_still():
                named = zip(readers, name_runs(watcher.views), strict=True)
                rows = [row for reader, name in named for row in reader.read(name, is_last=is_last)]
            if rows:
                await _call(writer.write, rows)
            if not self._is_ending:
                with trio.move_on_after(math.inf) as self._waiting:
                    await watcher.wait_change()


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)  # pyright: ignore[reportCallIssue]  # old stubs
