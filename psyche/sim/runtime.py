"""Simulated time: trio with a clock that jumps, one order of tasks per seed, no threads, and processes that stop.

trio has no public switch for a deterministic scheduler; its own testing tools set the same two names of
`trio._core._run` that are set here. A task belongs to the process in whose nursery tree it stands, whoever
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
COLLECT_EVERY_STEPS: Final = 1_500_000  # of tasks: with very many clients a batch is many
LOOK_AT_ALL_EVERY_RUNS: Final = 16
_begun: Final = itertools.count()
_run: Final[Any] = importlib.import_module("trio._core._run")
_cache: Final[Any] = importlib.import_module("trio._core._thread_cache")
Task = trio.lowlevel.Task


class RunQueue(deque[Task]):
    """trio's queue of tasks that can run; those of stopped processes wait beside it.

    Args:
        on_stuck: told the names of tasks that wake each other for ever at one moment of simulated time.
    """

    def __init__(self, on_stuck: Callable[[list[str]], None]) -> None:
        super().__init__()
        self._on_stuck = on_stuck
        self._stopped: dict[Task, list[Task]] = {}
        self._batches = 0
        self._steps = 0
        self._looked_at_s = -1.0

    def _sort_out(self, task: Task) -> None:
        """A task can run; while processes are stopped, this stands in the place of `append`."""
        root = find_root(task, self._stopped)
        if root is None:
            super().append(task)
        else:
            self._stopped[root].append(task)

    def clear(self) -> None:
        """A batch was taken."""
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
        """Free trio's own cycles, at fixed places and not when memory happens to fill; who stands still in time."""
        gc.collect()
        self._steps = 0
        former, self._looked_at_s = self._looked_at_s, trio.current_time()
        return sorted({task.name for task in self}) if self._looked_at_s == former else []

    def stop(self, root: Task) -> None:
        """Let no task of the process run until `resume`, as SIGSTOP does."""
        self._stopped.setdefault(root, [])
        vars(self)["append"] = self._sort_out  # deque's own is quicker while nobody is stopped
        waiting = list(self)
        super().clear()
        for task in waiting:
            self._sort_out(task)

    def resume(self, root: Task) -> None:
        """Let the process run again; what became due meanwhile is late."""
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
    """Put a `RunQueue` in the place of the running loop's own."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    queue = RunQueue(on_stuck)
    queue.extend(runner.runq)
    runner.runq = queue
    return queue


Blocking = Callable[..., Awaitable[Any]]


def free_former_world() -> None:
    """To be called before a world is built: frees a former one, and what is left need not be looked at for this one.

    It stays aside when the run is over, so that a run after many others looks at what is new alone. Some of it
    becomes garbage meanwhile: now and then all is looked at.
    """
    if next(_begun) % LOOK_AT_ALL_EVERY_RUNS == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@contextmanager
def simulated_time(seed: int, run_blocking: Blocking) -> Iterator[None]:
    """Within, `trio.run` schedules by the seed, and blocking functions go to `run_blocking`; no thread starts."""
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
    """Let this thread start no other one: that would go on while simulated time jumps, and no seed would repeat it.

    Other threads of the process, which know nothing of the simulation, may.
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
    """Run `main` in simulated time, which starts at 0, and return its result."""
    with simulated_time(seed, run_blocking):
        return trio.run(main, clock=_build_clock())


def _build_clock() -> trio.testing.MockClock:
    """A clock that only jumps: it is read several times in every step, and need not ask the real one."""
    clock: Any = trio.testing.MockClock(autojump_threshold=0)

    def jump() -> None:
        """As trio's own, which counts all that waits, tasks and sockets, to learn the next deadline."""
        ahead_s = _run.GLOBAL_RUN_CONTEXT.runner.deadlines.next_deadline() - clock._virtual_base  # noqa: SLF001
        if 0 < ahead_s < math.inf:
            clock.jump(ahead_s)

    clock.current_time = lambda: clock._virtual_base  # noqa: SLF001
    clock._autojump = jump  # noqa: SLF001
    return clock


def build_rng(seed: int, *names: object) -> random.Random:
    """Chance for one purpose: what others draw does not change it."""
    return random.Random("/".join(map(str, (seed, *names))))  # noqa: S311 - a simulation
