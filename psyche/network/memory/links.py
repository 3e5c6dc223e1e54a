"""Simulated links between named ends: latency, jitter, bandwidth, loss, copies, stalls and cuts, on trio's clock.

Delay and loss of all simulated traffic are decided here: for the streams of the in-memory node (`node.py`)
and for whatever else shares the same lines. Each direction has its own random generator, derived from one
seed, so that what happens on one link does not depend on the traffic of another.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import trio

from psyche.network.memory.line import SEND_BUFFER_BYTES, AccessLine, Arrivals, LinkConditions, Wire
from psyche.network.memory.pipe import MemoryStream, Pipe, Weigh


class Lane:
    """Carries announcements from one node to another as separate packets that may be lost, duplicated or reordered."""

    def __init__(
        self, wire: Wire, arrivals: Arrivals, max_waiting: int, receive: Callable[[bytes], None]
    ) -> None:  # fmt: skip
        self._wire = wire
        self._arrivals = arrivals
        self._receive = receive
        self._waiting: deque[bytes] = deque(maxlen=max_waiting)
        self.is_broken = False

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, packet: bytes) -> None:
        if self._waiting:
            self._waiting.append(packet)
        elif self._is_full():
            self._waiting.append(packet)
            self._arrivals.call_at(self._compute_free(), self._send_waiting)
        else:
            self._send(packet)

    def _compute_free(self) -> float:
        return self._wire.busy_until - SEND_BUFFER_BYTES / self._wire.conditions.bandwidth_bytes_s

    def _is_full(self) -> bool:
        return self._wire.busy_until > 0 and self._compute_free() > trio.current_time()

    def _send_waiting(self) -> None:
        while self._waiting and not self.is_broken and not self._is_full():
            self._send(self._waiting.popleft())
        if self._waiting and not self.is_broken:
            self._arrivals.call_at(self._compute_free(), self._send_waiting)

    def _send(self, packet: bytes) -> None:
        wire = self._wire
        if wire.is_lost():
            return
        departure = wire.compute_departure(len(packet))
        self._arrivals.call_at(departure + wire.compute_delay(), self._arrive, packet)
        if wire.is_copied():
            self._arrivals.call_at(departure + wire.compute_delay(), self._arrive, packet)

    def _arrive(self, packet: bytes) -> None:
        if self.is_broken:
            return
        if self._wire.stall is not None:
            self._wire.held.append(lambda: self._arrive(packet))
            return
        self._receive(packet)


class Links:
    def __init__(self, rng: random.Random, default: LinkConditions | None = None) -> None:
        self.on_cut: list[Callable[[], None]] = []  # called after a cut: owners of connections close those that are cut
        self._seed = rng.getrandbits(64)
        self._default = default or LinkConditions()
        self._wires: dict[tuple[bytes, bytes], Wire] = {}
        self._access: dict[bytes, tuple[AccessLine, AccessLine]] = {}
        self._cuts: set[frozenset[bytes]] = set()
        self._arrivals = Arrivals()

    def build_rng(self, *names: bytes) -> random.Random:
        """Build the random generator of one link or node, independent of all others and of the order of calls."""
        return random.Random(b"/".join((self._seed.to_bytes(8, "little"), *names)))  # noqa: S311 - a simulation

    def get_wire(self, source: bytes, target: bytes) -> Wire:
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = Wire(self._default, self.build_rng(source, target))
        return wire

    def get_round_trip_s(self, source: bytes, target: bytes) -> float:
        there = self.get_wire(source, target).conditions.latency_s
        return there + self.get_wire(target, source).conditions.latency_s

    def set_access(self, key: bytes, up_bytes_s: float, down_bytes_s: float) -> None:
        ways = self._access.setdefault(key, (AccessLine(), AccessLine()))
        for way, bandwidth_bytes_s in zip(ways, (up_bytes_s, down_bytes_s), strict=True):
            way.bandwidth_bytes_s = bandwidth_bytes_s

    def get_access(self, key: bytes) -> tuple[AccessLine, AccessLine] | None:
        return self._access.get(key)

    def open_pair(
        self, opener: bytes, other: bytes, *, answer_weigh: Weigh | None = None
    ) -> tuple[MemoryStream, MemoryStream]:
        """`answer_weigh`: the other end sends bulk data; maps the size of a write to the bytes it takes on the line."""
        there = Pipe(self.get_wire(opener, other), self._arrivals)
        access = None
        if answer_weigh is not None and opener in self._access and other in self._access:
            access = (self._access[other][0], self._access[opener][1])
        back = Pipe(self.get_wire(other, opener), self._arrivals, weigh=answer_weigh, access=access)
        return MemoryStream(back, there), MemoryStream(there, back)

    def open_lane(self, source: bytes, target: bytes, max_waiting: int, receive: Callable[[bytes], None]) -> Lane:
        return Lane(self.get_wire(source, target), self._arrivals, max_waiting, receive)

    def set_uplink(self, source: bytes, target: bytes, conditions: LinkConditions) -> None:
        self.get_wire(source, target).conditions = conditions

    def cut(self, first: Iterable[bytes], second: Iterable[bytes]) -> None:
        others = list(second)
        for a in first:
            self._cuts.update(frozenset((a, b)) for b in others if a != b)
        for notify in self.on_cut:
            notify()

    def is_cut(self, first: bytes, second: bytes) -> bool:
        return bool(self._cuts) and frozenset((first, second)) in self._cuts

    def stall(self, first: Sequence[bytes], second: Sequence[bytes]) -> None:
        """Stall the links between the two groups: connections stay open, but nothing arrives until `heal`."""
        for a in first:
            for b in second:
                for wire in (self.get_wire(a, b), self.get_wire(b, a)):
                    if wire.stall is None:
                        wire.stall = trio.Event()

    def heal(self) -> None:
        self._cuts.clear()
        for wire in self._wires.values():
            if wire.stall is not None:
                wire.stall.set()
                wire.stall = None
                held, wire.held = wire.held, []
                for arrive in held:
                    arrive()
