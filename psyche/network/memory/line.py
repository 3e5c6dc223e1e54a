"""What carries simulated bytes: one direction of a link, a machine's own line, and the queue of what is under way."""

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

SEND_BUFFER_BYTES: Final = 256 << 10  # how far a writer may be ahead of the line, as with a socket


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """The conditions of one direction of a link: seconds, bytes per second, and probabilities per packet.

    `jitter_s` is the most that is added to a packet's latency. Announcements that are separate packets can be
    lost, duplicated or, by jitter, reordered; on streams, loss and jitter delay what follows, as with TCP.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = math.inf
    loss: float = 0.0
    jitter_s: float = 0.0
    duplicate: float = 0.0


class Arrivals:
    """A timer queue: one task delivers everything in flight, no matter how many links there are."""

    def __init__(self) -> None:
        self._times: list[float] = []  # a heap without duplicates
        self._due: dict[float, list[tuple[Callable[..., None], tuple[object, ...]]]] = {}
        self._waiting: trio.CancelScope | None = None
        self._is_running = False

    def call_at(self, time_s: float, function: Callable[..., None], *args: object) -> None:
        """Call a function at a time on trio's clock; calls due at the same time run in the order they were added."""
        due = self._due.get(time_s)
        if due is not None:
            due.append((function, args))
            return
        self._due[time_s] = [(function, args)]
        heapq.heappush(self._times, time_s)
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run, name="arrivals")
        elif self._waiting is not None and time_s < self._waiting.deadline:
            self._waiting.deadline = time_s

    async def _run(self) -> None:
        while True:
            with trio.CancelScope(deadline=self._times[0] if self._times else math.inf) as self._waiting:  # pyright: ignore[reportCallIssue]
                await trio.sleep_forever()
            now = trio.current_time()
            while self._times and self._times[0] <= now:
                for function, args in self._due.pop(heapq.heappop(self._times)):
                    function(*args)


class AccessLine:
    """One machine's uplink or downlink: bulk transfers share its bandwidth, taking turns part by part."""

    def __init__(self) -> None:
        self.bandwidth_bytes_s = math.inf
        self.carried: defaultdict[int, float] = defaultdict(float)  # keyed by the size of the write
        self._turn = trio.Lock()
        self._busy_until = 0.0

    @property
    def carried_bytes(self) -> float:
        return sum(self.carried.values())

    async def carry(self, size_bytes: float, kind: int) -> None:
        async with self._turn:
            await trio.sleep(size_bytes / self.bandwidth_bytes_s)
        self.carried[kind] += size_bytes

    def compute_passage(self, begun: float, size_bytes: float, kind: int) -> float:
        """Occupy the line for `size_bytes` that arrive from `begun` on; return the time when they have passed."""
        passed = max(begun, self._busy_until) + size_bytes / self.bandwidth_bytes_s
        self._busy_until = max(passed, trio.current_time())
        self.carried[kind] += size_bytes
        return self._busy_until


class Wire:
    def __init__(self, conditions: LinkConditions, rng: random.Random) -> None:
        self.conditions = conditions
        self.rng = rng
        self.busy_until = 0.0
        self.stall: trio.Event | None = None  # while not None, nothing arrives until it is set
        self.held: list[Callable[[], None]] = []  # deliveries to make when it is set

    def compute_departure(self, size_bytes: float) -> float:
        start = max(trio.current_time(), self.busy_until)
        self.busy_until = start + size_bytes / self.conditions.bandwidth_bytes_s
        return self.busy_until

    def compute_delay(self) -> float:
        conditions = self.conditions
        return conditions.latency_s + (conditions.jitter_s * self.rng.random() if conditions.jitter_s else 0.0)

    def is_lost(self) -> bool:
        return self.conditions.loss > 0 and self.rng.random() < self.conditions.loss

    def is_copied(self) -> bool:
        return self.conditions.duplicate > 0 and self.rng.random() < self.conditions.duplicate
