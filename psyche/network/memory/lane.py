"""Announcements as separate packets, which a simulated link may lose, duplicate or reorder."""

from collections import deque
from collections.abc import Callable

import trio

from psyche.network.memory.line import SEND_BUFFER_BYTES, Arrivals, Wire


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
