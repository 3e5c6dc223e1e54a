"""Simulated links between named ends: latency, jitter, bandwidth, loss, copies, stalls and cuts, on trio's clock.

Everything that crosses a link takes its time and its chances here: the streams of the in-memory node
(`memory.py`), and whatever else is to share the same lines. All chance comes from one seed, separately
for every direction, so that what happens on one link does not depend on the traffic of another.
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
WEIGHTY_PARTS: Final = 4  # of what stands for something larger, or more of these:
WEIGHTY_PART_BYTES: Final = 16 << 20
SEND_BUFFER_BYTES: Final = 256 << 10  # a writer is ahead of the line by so much, as with a socket
WINDOW_BYTES: Final = 16 << 20  # written and not yet read, per stream
RETRANSMIT_S: Final = 0.2
Weigh = Callable[[int], float]  # how many bytes of the line those take that are written at once


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """One direction of a link: seconds, bytes a second, and shares of packets.

    `jitter_s` is the most that is added to the latency of a packet. A lost announcement is gone, one that
    is copied comes twice, and jitter lets them overtake each other; on other streams loss and jitter
    delay what follows, as TCP does.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = math.inf
    loss: float = 0.0
    jitter_s: float = 0.0
    duplicate: float = 0.0


class Arrivals:
    """What is to be called when: one task for all that is under way, however many links there are."""

    def __init__(self) -> None:
        self._times: list[float] = []  # a heap, each time once
        self._due: dict[float, list[tuple[Callable[..., None], tuple[object, ...]]]] = {}
        self._waiting: trio.CancelScope | None = None
        self._is_running = False

    def call_at(self, time_s: float, function: Callable[..., None], *args: object) -> None:
        """Call a function at a time on trio's clock; what is due at the same time, in the order of these calls."""
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
        """Ends with the loop that it runs in."""
        while True:
            with trio.CancelScope(deadline=self._times[0] if self._times else math.inf) as self._waiting:  # pyright: ignore[reportCallIssue]
                await trio.sleep_forever()
            now = trio.current_time()
            while self._times and self._times[0] <= now:
                for function, args in self._due.pop(heapq.heappop(self._times)):
                    function(*args)


class AccessLine:
    """One machine's way out, or in: whatever is bulky and passes it shares its bandwidth, part by part in turn."""

    def __init__(self) -> None:
        self.bandwidth_bytes_s = math.inf
        self.carried: defaultdict[int, float] = defaultdict(float)  # by the length of what was written at once
        self._turn = trio.Lock()
        self._busy_until = 0.0

    @property
    def carried_bytes(self) -> float:
        """All that has passed."""
        return sum(self.carried.values())

    async def carry(self, size_bytes: float, kind: int) -> None:
        """Wait for a turn, and until `size_bytes` have passed."""
        async with self._turn:
            await trio.sleep(size_bytes / self.bandwidth_bytes_s)
        self.carried[kind] += size_bytes

    def compute_passage(self, begun: float, size_bytes: float, kind: int) -> float:
        """When `size_bytes` that have begun to come at `begun` are through; the way is taken until then."""
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
        self.stall: trio.Event | None = None  # nothing arrives until it is set
        self.held: list[Callable[[], None]] = []  # called when it is

    def compute_departure(self, size_bytes: float) -> float:
        """When the last of `size_bytes` has left; the wire is taken until then."""
        start = max(trio.current_time(), self.busy_until)
        self.busy_until = start + size_bytes / self.conditions.bandwidth_bytes_s
        return self.busy_until

    def compute_delay(self) -> float:
        """How long a packet travels."""
        conditions = self.conditions
        return conditions.latency_s + (conditions.jitter_s * self.rng.random() if conditions.jitter_s else 0.0)

    def is_lost(self) -> bool:
        """Whether this packet is lost."""
        return self.conditions.loss > 0 and self.rng.random() < self.conditions.loss

    def is_copied(self) -> bool:
        """Whether this packet comes twice."""
        return self.conditions.duplicate > 0 and self.rng.random() < self.conditions.duplicate


class Lane:
    """Announcements from one node to another: each is a packet of its own that may be lost, copied or overtaken.

    Args:
        wire: what it runs over.
        arrivals: of its links.
        max_waiting: how many packets wait where the line is slower than they come; the oldest make room.
        receive: told each packet when it arrives.
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
        """Send a packet, at once or when the line is free."""
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
    """One direction of a stream: what was written, and when it arrives, in order.

    Args:
        wire: what it runs over.
        arrivals: of its links.
        weigh: how many bytes of the line something takes; None: as many as it has.
        access: the ways out and in that it shares with others of its machines; None: it has the wire for itself.
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
        self._room = Signal()  # the writer need not wait any more
        self._reader: trio.lowlevel.Task | None = None  # that waits for what comes next
        self._broken = trio.Event()
        self.is_closed = False

    @property
    def is_broken(self) -> bool:
        """Whether it was reset."""
        return self._broken.is_set()

    async def write(self, data: bytes) -> None:
        """Take the time that the wire takes; what is written arrives in order.

        Raises:
            StreamError: broken.
        """
        view = memoryview(data)
        endless = self._access is None and math.isinf(self._wire.conditions.bandwidth_bytes_s)
        # what stands for something larger goes in a few parts, enough for streams to share a line evenly
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
        await trio.lowlevel.checkpoint_if_cancelled()  # a line that takes all at once lets nobody wait

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
        """The reader wakes when the first part arrives, and not before."""
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
        """What has arrived, at most `max_bytes` of it.

        Raises:
            StreamError: at its end, or broken.
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
        """Until the first part arrives, or none comes any more."""
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
        """Nothing more is written; what was written still arrives."""
        self.is_closed = True
        if not self._parts:
            self._wake()
        self._room.notify()

    def break_off(self) -> None:
        """Both ends see a reset; what was under way is lost."""
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
        """Between 1 and `max_bytes` bytes; raises StreamError at the end."""
        return await self.incoming.read(max_bytes)

    async def write(self, data: bytes) -> None:
        """Send all of `data`; raises StreamError on a broken stream."""
        await self.outgoing.write(data)

    async def close(self) -> None:
        """Nothing more will be written."""
        self.outgoing.close()

    async def reset(self) -> None:
        """End both directions at once."""
        self.break_off()

    def break_off(self) -> None:
        """As `reset`."""
        self.incoming.break_off()
        self.outgoing.break_off()

    @property
    def is_over(self) -> bool:
        """Whether the stream was reset."""
        return self.incoming.is_broken


class Links:
    """All links between ends that are named by keys.

    Args:
        rng: the source of all chance.
        default: what links are like that were not set otherwise.
    """

    def __init__(self, rng: random.Random, default: LinkConditions | None = None) -> None:
        self.on_cut: list[Callable[[], None]] = []  # who has connections looks which of them are cut
        self._seed = rng.getrandbits(64)
        self._default = default or LinkConditions()
        self._wires: dict[tuple[bytes, bytes], Wire] = {}
        self._access: dict[bytes, tuple[AccessLine, AccessLine]] = {}
        self._cuts: set[frozenset[bytes]] = set()
        self._arrivals = Arrivals()

    def build_rng(self, *names: bytes) -> random.Random:
        """Chance of one link or node: independent of what the others do, and in which order."""
        return random.Random(b"/".join((self._seed.to_bytes(8, "little"), *names)))  # noqa: S311 - a simulation

    def get_wire(self, source: bytes, target: bytes) -> Wire:
        """One direction between two ends."""
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = Wire(self._default, self.build_rng(source, target))
        return wire

    def get_round_trip_s(self, source: bytes, target: bytes) -> float:
        """There and back, without jitter."""
        there = self.get_wire(source, target).conditions.latency_s
        return there + self.get_wire(target, source).conditions.latency_s

    def set_access(self, key: bytes, up_bytes_s: float, down_bytes_s: float) -> None:
        """What a machine sends and receives in bulk, to and from all others together."""
        ways = self._access.setdefault(key, (AccessLine(), AccessLine()))
        for way, bandwidth_bytes_s in zip(ways, (up_bytes_s, down_bytes_s), strict=True):
            way.bandwidth_bytes_s = bandwidth_bytes_s

    def get_access(self, key: bytes) -> tuple[AccessLine, AccessLine] | None:
        """A machine's ways out and in, where they were set."""
        return self._access.get(key)

    def open_pair(
        self, opener: bytes, other: bytes, *, answer_weigh: Weigh | None = None
    ) -> tuple[MemoryStream, MemoryStream]:
        """A stream: the opener's end, and the other's.

        `answer_weigh`: what the other answers is bulky, and takes so much of the line.
        """
        there = Pipe(self.get_wire(opener, other), self._arrivals)
        access = None
        if answer_weigh is not None and opener in self._access and other in self._access:
            access = (self._access[other][0], self._access[opener][1])
        back = Pipe(self.get_wire(other, opener), self._arrivals, weigh=answer_weigh, access=access)
        return MemoryStream(back, there), MemoryStream(there, back)

    def open_lane(self, source: bytes, target: bytes, max_waiting: int, receive: Callable[[bytes], None]) -> Lane:
        """A way for packets of their own from one end to the other."""
        return Lane(self.get_wire(source, target), self._arrivals, max_waiting, receive)

    def set_link(self, first: bytes, second: bytes, conditions: LinkConditions) -> None:
        """Both directions between two ends; holds for what is written from now on."""
        self.set_uplink(first, second, conditions)
        self.set_uplink(second, first, conditions)

    def set_uplink(self, source: bytes, target: bytes, conditions: LinkConditions) -> None:
        """One direction between two ends."""
        self.get_wire(source, target).conditions = conditions

    def cut(self, first: Iterable[bytes], second: Iterable[bytes]) -> None:
        """No connection between the two groups until `heal`; open ones break."""
        others = list(second)
        for a in first:
            self._cuts.update(frozenset((a, b)) for b in others if a != b)
        for notify in self.on_cut:
            notify()

    def partition(self, *groups: Sequence[bytes]) -> None:
        """Cut the groups from one another."""
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                self.cut(group, other)

    def is_cut(self, first: bytes, second: bytes) -> bool:
        """Whether the two cannot be connected now."""
        return bool(self._cuts) and frozenset((first, second)) in self._cuts

    def stall(self, first: Sequence[bytes], second: Sequence[bytes]) -> None:
        """Connections between the two groups stay open, but nothing arrives until `heal`."""
        for a in first:
            for b in second:
                for wire in (self.get_wire(a, b), self.get_wire(b, a)):
                    if wire.stall is None:
                        wire.stall = trio.Event()

    def heal(self) -> None:
        """Undo all cuts and stalls; the nodes find each other again by redialing."""
        self._cuts.clear()
        for wire in self._wires.values():
            if wire.stall is not None:
                wire.stall.set()
                wire.stall = None
                held, wire.held = wire.held, []
                for arrive in held:
                    arrive()
