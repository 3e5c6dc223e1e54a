"""Streams over simulated links: what is written arrives in order, as fast as the line carries it."""

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from psyche.network.memory.line import SEND_BUFFER_BYTES, AccessLine, Arrivals, Wire
from psyche.network.streams import Signal, StreamError, run_until

FRAME_BYTES: Final = 256 << 10  # streams of one link take turns
WEIGHTY_PARTS: Final = 4  # a weighed write is sent in this many parts, or more if a part would exceed:
WEIGHTY_PART_BYTES: Final = 16 << 20
WINDOW_BYTES: Final = 16 << 20  # written and not yet read, per stream
RETRANSMIT_S: Final = 0.2
Weigh = Callable[[int], float]  # maps the size of a write to the bytes it takes on the line


class Pipe:
    """One direction of a stream: delivers what was written, in order, after the link's delay."""

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
        return self._broken.is_set()

    async def write(self, data: bytes) -> None:
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
        self.is_closed = True
        if not self._parts:
            self._wake()
        self._room.notify()

    def break_off(self) -> None:
        self._parts.clear()
        self._broken.set()
        self._wake()
        self._room.notify()


class MemoryStream:
    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming = incoming
        self.outgoing = outgoing

    async def read_some(self, max_bytes: int) -> bytes:
        return await self.incoming.read(max_bytes)

    async def write(self, data: bytes) -> None:
        await self.outgoing.write(data)

    async def close(self) -> None:
        self.outgoing.close()

    async def reset(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        self.incoming.break_off()
        self.outgoing.break_off()

    @property
    def is_over(self) -> bool:
        return self.incoming.is_broken
