"""What watching a large run costs: the page in a browser, the screen, the watcher's memory, and events of a client.

Needs chromium-headless-shell. The members' logs have all that they trained, and of the last rounds everything.
"""

import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psutil
from _table import build_parser, finish, print_table
from watch_fold import KEY, write_round

from psyche.analysis.run_view import RunView
from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.events import EventLog, EventTail, read_entry

WHOLE_ROUNDS: Final = 55  # at the end of which each member's log has everything: what a view keeps, and some more
ROUND_S: Final = 10.0
LOOK_S: Final = 30.0  # how long each cost is measured
DAY_ROUNDS: Final = 8_640
FLAGS: Final = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--enable-precise-memory-info",
    "--js-flags=--expose-gc",
]  # fmt: skip
TASKS: Final = """() => { window.tasks = []; new PerformanceObserver((list) =>
    tasks.push(...list.getEntries().map((one) => one.duration))).observe({ entryTypes: ["longtask"] }); }"""
PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


class Run:
    """A folder of logs that goes on, on the clock of this machine."""

    def __init__(self, folder: Path, members: int, rounds: int) -> None:
        self.members, self.height, self.first_whole = members, 0, rounds - WHOLE_ROUNDS
        self.unix = time.time() - rounds * ROUND_S
        names = ["server", *(f"client-{member}" for member in range(members))]
        self.logs = [EventLog(folder / name / "events.jsonl", node=name, now=lambda: self.unix) for name in names]
        for number in range(rounds):
            self.play(is_whole=number >= self.first_whole)

    def play(self, *, is_whole: bool = True) -> None:
        server, *others = self.logs
        place: dict[str, Any] = {"epoch": self.height // 100, "height": self.height % 100, "step": self.height + 1}
        server.emit(types.StateChanged(run_state=RunState.ROUND_TRAIN, members=self.members, **place))
        self.unix += ROUND_S / 2  # logs are merged by time: what members do comes after the state that it is of
        for member, log in enumerate(others):
            if is_whole:
                write_round(log, member, self.members, self.height)
                if not self.height % 100 or self.height == self.first_whole:
                    log.emit(types.Member(index=member, members=self.members))
            else:
                log.emit(types.Trained(
                    **place, loss=3.0, tokens=4_096, seconds=1.5, compute_seconds=1.4, micro_batch_size=8,
                    grad_norm=0.5, data_hash=KEY,
                ))  # fmt: skip
        server.emit(types.RoundOver(
            **place, total_steps=5_000, seconds=ROUND_S, members=self.members, results=self.members,
            loss=9.0 / (1 + self.height / 300), least=2.0, greatest=9.5, tokens_per_s=1e5, unix=int(self.unix),
            tokens=10**6 * self.height,
        ))  # fmt: skip
        self.height, self.unix = self.height + 1, self.unix + ROUND_S / 2

    @contextmanager
    def going_on(self) -> Iterator[None]:
        is_over = threading.Event()

        def work() -> None:
            while not is_over.wait(ROUND_S):
                self.unix = time.time() - ROUND_S / 2
                self.play()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@contextmanager
def open_watch(folder: Path, *words: str) -> Iterator[tuple[psutil.Process, int]]:
    """`psyche watch` on a terminal of its own: the process, and the descriptor that reads what it writes."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    command = [sys.executable, "-m", "psyche", "watch", str(folder), *words]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"}) as p:
        try:
            yield psutil.Process(p.pid), master
        finally:
            p.send_signal(signal.SIGKILL)


def read_until(master: int, word: bytes) -> bytes:
    read = b""
    while word not in read:
        read += os.read(master, 1 << 16)
    return read


def drain(master: int) -> None:
    def work() -> None:
        with open(master, "rb", buffering=0, closefd=False) as file:
            while file.read(1 << 16):
                pass

    threading.Thread(target=work, daemon=True).start()


def measure_cpu(process: psutil.Process) -> float:
    """The share of a core that it takes while the run goes on, in percent."""
    before, start = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(LOOK_S)
    return 100 * (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - start)


def measure_page(run: Run, folder: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        process, master = stack.enter_context(open_watch(folder, "--web", "0"))
        address = "http" + read_until(master, b"/\r\n").decode().rpartition("http")[2].strip()
        drain(master)
        chrome = shutil.which("chromium-headless-shell")
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=chrome, args=FLAGS)
        tab: Any = browser.new_context().new_page()
        wait_until_read(process)
        tab.goto(f"{address}#/run/0")
        tab.wait_for_selector(f".tile:nth-child({run.members})", timeout=60_000)
        figures = {"paint_ms": tab.evaluate(PAINT), "whole_ms": tab.evaluate("performance.now()")}
        tab.evaluate(TASKS)
        with run.going_on():
            cpu = measure_cpu(process)
        tab.evaluate("gc()")
        heap = tab.evaluate("performance.memory.usedJSHeapSize") / 1e6
        figures |= {"update_ms": max(tab.evaluate("tasks"), default=50.0), "heap_mb": heap, "watcher_cpu": cpu}
        return figures | {"watcher_mb": process.memory_info().rss / 1e6}


def wait_until_read(process: psutil.Process) -> None:
    """Until it has nothing to do for two seconds."""
    process.cpu_percent()
    while process.cpu_percent(2.0) > 20:
        pass


def measure_screen(run: Run, folder: Path) -> float:
    with open_watch(folder, "--tui") as (process, master):
        drain(master)
        wait_until_read(process)
        with run.going_on():
            return measure_cpu(process)


def measure_day(members: int = 4) -> tuple[float, float]:
    """MB of a process that folds a day of rounds: after an eighth of it, and at its end."""
    with tempfile.TemporaryDirectory() as folder:
        logs = [EventLog(Path(folder) / f"{n}.jsonl", node=f"client-{n}", keep=0) for n in range(members)]
        tails, view, sizes = [EventTail(log.path) for log in logs if log.path], RunView("day"), list[float]()
        for height in range(DAY_ROUNDS):
            for member, (log, tail) in enumerate(zip(logs, tails, strict=True)):
                write_round(log, member, members, height)
                if height % 20 == 19:
                    for line in tail.read():
                        view.take(read_entry(line))
            if height + 1 in (DAY_ROUNDS // 4, DAY_ROUNDS):  # by then curves have their 2,000 points
                sizes.append(psutil.Process().memory_info().rss / 1e6)
        return sizes[0], sizes[1]


def measure_events(members: int) -> tuple[float, float]:
    """Microseconds of an event, and the share of a core of a member whose rounds take 10 s, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(Path(folder) / "events.jsonl", node="client-0")
        start = time.process_time()
        for height in range(500):
            write_round(log, 0, members, height)
        each_s = (time.process_time() - start) / 500 / 16
    return 1e6 * each_s, 100 * each_s * (10 + members) / ROUND_S


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def main() -> None:
    args = build_parser(__doc__).parse_args()
    members, rounds = (16, 100) if args.quick else (256, 1_000)
    with tempfile.TemporaryDirectory() as name:
        run = Run(Path(name), members, rounds)
        result: dict[str, Any] = measure_page(run, Path(name)) | {"screen_cpu": measure_screen(run, Path(name))}
    result["event_us"], result["events_cpu"] = measure_events(members)
    print_table(f"watching {members} members, {rounds} rounds", ("figure", "value"), [*result.items()])
    result["day_start_mb"], result["day_end_mb"] = in_child(measure_day)
    print_table(f"a day of {DAY_ROUNDS} rounds", ("figure", "value"), [*result.items()][-2:])
    finish(args, result)


if __name__ == "__main__":
    main()
