"""Simulated links between named ends: latency, jitter, bandwidth, loss, copies, stalls and cuts, on trio's clock.

Delay and loss of all simulated traffic are computed here: for the streams of the in-memory node (`memory.py`)
and for whatever else shares the same lines. Each direction has its own random generator, derived from one
seed, so that what happens on one link does not depend on the traffic of another.
"""

import heapq
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from psyche.network.streams import Signal, StreamError, run_until

FRAME_BYTES: Final = 256 << 10  # streams of one link take turns
WEIGHTY_PARTS: Final = 4  # a weighed write is sent in this many parts, or more if a part would exceed:
WEIGHTY_PART_BYTES: Final = 16 << 20
SEND_BUFFER_BYTES: Final = 256 << 10  # how far a writer may be ahead of the line, as with a socket
WINDOW_BYTES: Final = 16 << 20  # written and not yet read, per stream
RETRANSMIT_S: Final = 0.2
Weigh = Callable[[int], float]  # maps the size of a write to the bytes it takes on the line


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
        """Run the due calls, as a system task that ends with trio's run loop."""
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
        """The total of bytes that have passed."""
        return sum(self.carried.values())

    async def carry(self, size_bytes: float, kind: int) -> None:
        """Wait for a turn, then until `size_bytes` have passed."""
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
    """One direction between two ends."""

    def __init__(self, conditions: LinkConditions, rng: random.Random) -> None:
        self.conditions = conditions
        self.rng = rng
        self.busy_until = 0.0
        self.stall: trio.Event | None = None  # while not None, nothing arrives until it is set
        self.held: list[Callable[[], None]] = []  # deliveries to make when it is set

    def compute_departure(self, size_bytes: float) -> float:
        """Occupy the wire for `size_bytes`; return the time when the last of them has left."""
        start = max(trio.current_time(), self.busy_until)
        self.busy_until = start + size_bytes / self.conditions.bandwidth_bytes_s
        return self.busy_until

    def compute_delay(self) -> float:
        """Return the seconds that a packet travels: latency and jitter."""
        conditions = self.conditions
        return conditions.latency_s + (conditions.jitter_s * self.rng.random() if conditions.jitter_s else 0.0)

    def is_lost(self) -> bool:
        """Draw whether a packet is lost."""
        return self.conditions.loss > 0 and self.rng.random() < self.conditions.loss

    def is_copied(self) -> bool:
        """Draw whether a packet is duplicated."""
        return self.conditions.duplicate > 0 and self.rng.random() < self.conditions.duplicate


class Lane:
    """Carries announcements from one node to another as separate packets that may be lost, duplicated or reordered.

    Args:
        wire: the direction of the link that it uses.
        arrivals: the timer queue of its links.
        max_waiting: how many packets may wait for the line; when more come, the oldest are dropped.
        receive: called with each packet when it arrives.
    """

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
        """Send a packet now, or as soon as the line is free."""
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


class Pipe:
    """One direction of a stream: delivers what was written, in order, after the link's delay.

    Args:
        wire: the direction of the link that it uses.
        arrivals: the timer queue of its links.
        weigh: maps the size of a write to the bytes it takes on the line; None: the size itself.
        access: the sender's uplink and the receiver's downlink, shared with other pipes; None: no shared lines.
    """

    def __init__(
        self,
        wire: Wire,
        arrivals: Arrivals,
        *,
        weigh: Weigh | None = None,
        access: tuple[AccessLine, AccessLine] | None = None,
    ) -> None:
        self._wire = wire
        self._arrivals = arrivals
        self._weigh = weigh
        self._access = access
        self._parts: deque[tuple[float, memoryview]] = deque()  # by arrival
        self._unread = 0
        self._last_arrival = 0.0
        self._room = Signal()  # set when the writer need not wait any longer
        self._reader: trio.lowlevel.Task | None = None  # the reader that waits for data
        self._broken = trio.Event()
        self.is_closed = False

    @property
    def is_broken(self) -> bool:
        """Whether the stream was reset."""
        return self._broken.is_set()

    async def write(self, data: bytes) -> None:
        """Write data, taking as long as the wire needs; what is written arrives in order.

        Raises:
            StreamError: the stream is broken.
        """
        view = memoryview(data)
        endless = self._access is None and math.isinf(self._wire.conditions.bandwidth_bytes_s)
        # a weighed write goes in a few parts, enough for streams to share a line evenly
        weight = self._weigh(len(view)) / len(view) if self._weigh is not None and view else 1.0
        parts = max(WEIGHTY_PARTS, math.ceil(weight * len(view) / WEIGHTY_PART_BYTES))
        step = max(1, len(view) if endless else -(-len(view) // parts) if weight > 1 else FRAME_BYTES)
        for start in range(0, len(view), step):
            await self._write_part(view[start : start + step], weight, len(view))

    async def _write_part(self, part: memoryview, weight: float, kind: int) -> None:
        while self._unread > WINDOW_BYTES and not self._broken.is_set():
            await self._room.wait()
        if self._broken.is_set() or self.is_closed:
            raise StreamError("stream: broken while writing")
        departure = await self._compute_departure(len(part) * weight, kind)
        self._put(part, departure)
        free = departure - SEND_BUFFER_BYTES / self._wire.conditions.bandwidth_bytes_s
        if free > trio.current_time():
            with trio.move_on_at(free):
                await self._broken.wait()
        await trio.lowlevel.checkpoint_if_cancelled()  # with unlimited bandwidth no writer has to wait

    async def _compute_departure(self, size_bytes: float, kind: int) -> float:
        if self._access is None:
            return self._wire.compute_departure(size_bytes)
        way_out, way_in = self._access
        await way_out.carry(size_bytes, kind)
        begun = trio.current_time() - size_bytes / way_out.bandwidth_bytes_s
        return max(trio.current_time(), way_in.compute_passage(begun, size_bytes, kind))

    def _put(self, part: memoryview, departure: float) -> None:
        arrival = departure + self._wire.compute_delay()
        if self._wire.is_lost():
            arrival += RETRANSMIT_S + 2 * self._wire.conditions.latency_s
        self._last_arrival = arrival = max(self._last_arrival, arrival)
        self._unread += len(part)
        self._parts.append((arrival, part))
        if len(self._parts) == 1:
            self._call_reader(arrival)

    def _call_reader(self, arrival: float) -> None:
        """Wake the reader when the first part arrives."""
        if self._reader is None:
            return
        if arrival <= trio.current_time():
            self._wake()
        else:
            self._arrivals.call_at(arrival, self._wake)

    def _wake(self) -> None:
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    async def read(self, max_bytes: int) -> bytes:
        """Read what has arrived, at most `max_bytes`.

        Raises:
            StreamError: the stream is at its end or broken.
        """
        while True:
            if self._broken.is_set():
                raise StreamError("stream: reset")
            if self._wire.stall is not None:
                await run_until(self._broken, self._wire.stall.wait)
            elif self._parts and self._parts[0][0] <= trio.current_time():
                return await self._take(max_bytes)
            elif self._parts or not self.is_closed:
                await self._wait()
            else:
                raise StreamError("stream: at its end")

    async def _wait(self) -> None:
        """Wait until the first part arrives, or until none will come."""
        self._reader = trio.lowlevel.current_task()
        if self._parts:
            self._arrivals.call_at(self._parts[0][0], self._wake)
        await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def _take(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()  # from here on nothing is lost by a cancellation; others
        # need not run between: who reads on comes to an end of what has arrived
        arrival, part = self._parts[0]
        data = bytes(part[:max_bytes])
        self._unread -= len(data)
        if self._unread <= WINDOW_BYTES < self._unread + len(data):
            self._room.notify()
        if len(part) > max_bytes:
            self._parts[0] = (arrival, part[max_bytes:])
        else:
            self._parts.popleft()
        return data

    def close(self) -> None:
        """Close for writing; what was written still arrives."""
        self.is_closed = True
        if not self._parts:
            self._wake()
        self._room.notify()

    def break_off(self) -> None:
        """Reset the stream at both ends; data in flight is lost."""
        self._parts.clear()
        self._broken.set()
        self._wake()
        self._room.notify()


class MemoryStream:
    """One end of a stream over simulated links."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming = incoming
        self.outgoing = outgoing

    async def read_some(self, max_bytes: int) -> bytes:
        """Read between 1 and `max_bytes` bytes; raises StreamError at the end."""
        return await self.incoming.read(max_bytes)

    async def write(self, data: bytes) -> None:
        """Send all of `data`; raises StreamError on a broken stream."""
        await self.outgoing.write(data)

    async def close(self) -> None:
        """Close for writing."""
        self.outgoing.close()

    async def reset(self) -> None:
        """Reset both directions at once."""
        self.break_off()

    def break_off(self) -> None:
        """Reset both directions at once, without waiting."""
        self.incoming.break_off()
        self.outgoing.break_off()

    @property
    def is_over(self) -> bool:
        """Whether the stream was reset."""
        return self.incoming.is_broken


class Links:
    """All links; their ends are named by keys.

    Args:
        rng: the source of all randomness.
        default: the conditions of links that were not set.
    """

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
        """Return one direction between two ends."""
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = Wire(self._default, self.build_rng(source, target))
        return wire

    def get_round_trip_s(self, source: bytes, target: bytes) -> float:
        """Return the latency of both directions in seconds, without jitter."""
        there = self.get_wire(source, target).conditions.latency_s
        return there + self.get_wire(target, source).conditions.latency_s

    def set_access(self, key: bytes, up_bytes_s: float, down_bytes_s: float) -> None:
        """Set the bandwidths of a machine's uplink and downlink, which all its bulk transfers share."""
        ways = self._access.setdefault(key, (AccessLine(), AccessLine()))
        for way, bandwidth_bytes_s in zip(ways, (up_bytes_s, down_bytes_s), strict=True):
            way.bandwidth_bytes_s = bandwidth_bytes_s

    def get_access(self, key: bytes) -> tuple[AccessLine, AccessLine] | None:
        """Return a machine's uplink and downlink, or None if they were not set."""
        return self._access.get(key)

    def open_pair(
        self, opener: bytes, other: bytes, *, answer_weigh: Weigh | None = None
    ) -> tuple[MemoryStream, MemoryStream]:
        """Open a stream; return the opener's end and the other end.

        `answer_weigh`: the other end sends bulk data; maps the size of a write to the bytes it takes on the line.
        """
        there = Pipe(self.get_wire(opener, other), self._arrivals)
        access = None
        if answer_weigh is not None and opener in self._access and other in self._access:
            access = (self._access[other][0], self._access[opener][1])
        back = Pipe(self.get_wire(other, opener), self._arrivals, weigh=answer_weigh, access=access)
        return MemoryStream(back, there), MemoryStream(there, back)

    def open_lane(self, source: bytes, target: bytes, max_waiting: int, receive: Callable[[bytes], None]) -> Lane:
        """Open a lane for separate packets from one end to the other."""
        return Lane(self.get_wire(source, target), self._arrivals, max_waiting, receive)

    def set_link(self, first: bytes, second: bytes, conditions: LinkConditions) -> None:
        """Set the conditions of both directions between two ends for what is written from now on."""
        self.set_uplink(first, second, conditions)
        self.set_uplink(second, first, conditions)

    def set_uplink(self, source: bytes, target: bytes, conditions: LinkConditions) -> None:
        """Set the conditions of one direction between two ends for what is written from now on."""
        self.get_wire(source, target).conditions = conditions

    def cut(self, first: Iterable[bytes], second: Iterable[bytes]) -> None:
        """Cut all connections between the two groups until `heal`."""
        others = list(second)
        for a in first:
            self._cuts.update(frozenset((a, b)) for b in others if a != b)
        for notify in self.on_cut:
            notify()

    def partition(self, *groups: Sequence[bytes]) -> None:
        """Cut all connections between different groups until `heal`."""
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                self.cut(group, other)

    def is_cut(self, first: bytes, second: bytes) -> bool:
        """Whether the link between two ends is cut."""
        return bool(self._cuts) and frozenset((first, second)) in self._cuts

    def stall(self, first: Sequence[bytes], second: Sequence[bytes]) -> None:
        """Stall the links between the two groups: connections stay open, but nothing arrives until `heal`."""
        for a in first:
            for b in second:
                for wire in (self.get_wire(a, b), self.get_wire(b, a)):
                    if wire.stall is None:
                        wire.stall = trio.Event()

    def heal(self) -> None:
        """Undo all cuts and stalls; the nodes reconnect by redialing."""
        self._cuts.clear()
        for wire in self._wires.values():
            if wire.stall is not None:
                wire.stall.set()
                wire.stall = None
                held, wire.held = wire.held, []
                for arrive in held:
                    arrive()
