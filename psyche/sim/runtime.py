"""Simulated time: trio with a clock that jumps, one task order per seed, no threads, and processes that can be paused.

trio has no public switch for a deterministic scheduler; its own test tools set the same two names of
`trio._core._run` that this module sets. A task belongs to the process whose nursery tree it is in, whoever
started it there.
"""

import functools
import gc
import importlib
import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeVar

import trio
import trio.testing

T = TypeVar("T")
LOOK_EVERY_BATCHES: Final = 25_000  # no run does so much at one moment, unless its tasks wake each other for ever
COLLECT_EVERY_STEPS: Final = 1_500_000  # task steps; with very many clients a batch has many
LOOK_AT_ALL_EVERY_RUNS: Final = 16
_begun: Final = itertools.count()
_run: Final[Any] = importlib.import_module("trio._core._run")
_cache: Final[Any] = importlib.import_module("trio._core._thread_cache")
Task = trio.lowlevel.Task


class RunQueue(deque[Task]):
    """trio's queue of runnable tasks; tasks of paused processes wait beside it.

    Args:
        on_stuck: called with the names of tasks that wake each other for ever at one moment of simulated time.
    """

    def __init__(self, on_stuck: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._on_stuck = on_stuck
        self._stopped: dict[Task, list[Task]] = {}
        self._batches = 0
        self._steps = 0
        self._looked_at_s = -1.0

    def _sort_out(self, task: Task) -> None:
        """Queue a runnable task, or hold it back; replaces `append` while processes are paused."""
        root = find_root(task, self._stopped)
        if root is None:
            super().append(task)
        else:
            self._stopped[root].append(task)

    def clear(self) -> None:
        self._batches += 1
        self._steps += len(self)
        names = self._look() if self._batches % LOOK_EVERY_BATCHES == 0 else []
        super().clear()
        if self._steps >= COLLECT_EVERY_STEPS:
            self._steps = 0
            gc.collect()
        if names:
            self._on_stuck(names)

    def _look(self) -> list[str]:
        """Free trio's reference cycles, at fixed places, not by memory use; return the tasks if time stands still."""
        gc.collect()
        self._steps = 0
        former, self._looked_at_s = self._looked_at_s, trio.current_time()
        return sorted({task.name for task in self}) if self._looked_at_s == former else []

    def stop(self, root: Task) -> None:
        self._stopped.setdefault(root, [])
        vars(self)["append"] = self._sort_out  # deque's own method is faster while nothing is paused
        waiting = list(self)
        super().clear()
        for task in waiting:
            self._sort_out(task)

    def resume(self, root: Task) -> None:
        """Resume the process; what became due meanwhile runs late."""
        waiting = self._stopped.pop(root, [])
        if not self._stopped:
            vars(self).pop("append", None)
        for task in waiting:
            self.append(task)


def find_root(task: Task | None, roots: dict[Task, Any]) -> Task | None:
    """The process of a task: the nearest of `roots` above it, or itself."""
    while task is not None and task not in roots:
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return task


def install_queue(on_stuck: Callable[[list[str]], None]) -> RunQueue:
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    queue = RunQueue(on_stuck)
    queue.extend(runner.runq)
    runner.runq = queue
    return queue


Blocking = Callable[..., Awaitable[Any]]


def free_former_world() -> None:
    """Free the objects of a former world before a new one is built, and exempt the survivors from garbage collection.

    They stay exempt when the run is over, so that later collections look only at new objects. Some of them become
    garbage, so every `LOOK_AT_ALL_EVERY_RUNS` runs all objects are looked at.
    """
    if next(_begun) % LOOK_AT_ALL_EVERY_RUNS == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def simulated_time(seed: int, run_blocking: Blocking) -> Iterator[None]:
    """Inside, `trio.run` schedules by the seed, and `run_blocking` runs blocking functions; starting a thread fails."""
    state, flag, thread = _run._r.getstate(), _run._ALLOW_DETERMINISTIC_SCHEDULING, trio.to_thread.run_sync  # noqa: SLF001
    collecting = gc.isenabled()
    _run._r.seed(f"scheduler {seed}")  # noqa: SLF001
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    trio.to_thread.run_sync = functools.partial(_forward, run_blocking)  # pyright: ignore[reportAttributeAccessIssue]
    gc.disable()
    try:
        with ExitStack() as stack:
            for cls, name in ((_cache.ThreadCache, "start_thread_soon"), (threading.Thread, "start")):
                stack.enter_context(_refused(cls, name))
            yield
    finally:
        _run._r.setstate(state)  # noqa: SLF001
        _run._ALLOW_DETERMINISTIC_SCHEDULING = flag  # noqa: SLF001
        trio.to_thread.run_sync = thread
        if collecting:
            gc.enable()


@contextmanager
def _refused(cls: type[Any], name: str) -> Iterator[None]:
    """Forbid this thread to start others: they would run on while simulated time jumps, so no seed could be repeated.

    Other threads of the process, which are no part of the simulation, may start threads.
    """
    mine, former = threading.get_ident(), getattr(cls, name)

    def start(*args: Any, **options: Any) -> Any:
        if threading.get_ident() == mine:
            raise RuntimeError(
                "no thread starts in simulated time: use trio.to_thread.run_sync(function, ...), by that very name "
                "(trio.Path and other helpers of trio have their own way to threads)"
            )
        return former(*args, **options)

    setattr(cls, name, start)
    try:
        yield
    finally:
        setattr(cls, name, former)


async def _forward(run_blocking: Blocking, function: Callable[..., Any], *args: Any, **_options: Any) -> Any:
    return await run_blocking(function, *args)


def run(main: Callable[[], Awaitable[T]], seed: int, run_blocking: Blocking) -> T:
    """Run `main` in simulated time, which starts at 0, and return its result.

    Raises:
        KeyboardInterrupt: Ctrl-C; raised in `main` alone, for inside a library's task it may surface as any error, or
            be lost.
    """
    with simulated_time(seed, run_blocking):
        return trio.run(main, clock=_build_clock(), restrict_keyboard_interrupt_to_checkpoints=True)


def _build_clock() -> trio.testing.MockClock:
    """A clock that only jumps: it is read several times in every step, and does not need the real time."""
    clock: Any = trio.testing.MockClock(autojump_threshold=0)

    def jump() -> None:
        """Jump to the next deadline; trio's own method counts all waiting tasks and sockets to find it."""
        ahead_s = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline() - clock._virtual_base  # noqa: SLF001
        if 0 < ahead_s < math.inf:
            clock.jump(ahead_s)

    clock.current_time = lambda: clock._virtual_base  # noqa: SLF001
    clock._autojump = jump  # noqa: SLF001
    return clock


def build_rng(seed: int, *names: object) -> random.Random:
    """A random generator for one purpose: draws from other generators do not change it."""
    return random.Random("/".join(map(str, (seed, *names))))  # noqa: S311 - a simulation
