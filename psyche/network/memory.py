"""The in-memory twin of the libp2p node: same code above the streams, simulated links below.

Links have latency, bandwidth and loss, and can be cut; everything runs on trio's clock, so a
`MockClock` runs hours in seconds. All chance comes from the `random.Random` that the hub is given:

    hub = MemoryHub(random.Random(7), LinkConditions(latency_s=0.05, bandwidth_bytes_s=1e6))
    async with hub.open_node(identity, folder) as node:
        ...
"""

import math
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from psyche.errors import NetworkError
from psyche.network.base import BaseNode
from psyche.network.blobstore import run_inline
from psyche.network.limits import NetworkLimits
from psyche.network.streams import GOSSIP, Signal, StreamError
from psyche.wire.crypto import Identity

FRAME_BYTES: Final = 256 << 10  # streams of one link take turns
WINDOW_BYTES: Final = 16 << 20  # written and not yet read, per stream
RETRANSMIT_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LinkConditions:
    """One direction of a link: seconds, bytes a second, and the share of packets that are lost.

    A lost announcement is gone; on other streams loss delays what follows, as TCP does.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = math.inf
    loss: float = 0.0


class _Wire:
    """One direction between two nodes."""

    def __init__(self, conditions: LinkConditions, rng: random.Random) -> None:
        self.conditions = conditions
        self.rng = rng
        self.busy_until = 0.0

    def compute_departure(self, size_bytes: int) -> float:
        """When the last of `size_bytes` has left; the wire is taken until then."""
        start = max(trio.current_time(), self.busy_until)
        self.busy_until = start + size_bytes / self.conditions.bandwidth_bytes_s
        return self.busy_until

    def is_lost(self) -> bool:
        """Whether this packet is lost."""
        return self.conditions.loss > 0 and self.rng.random() < self.conditions.loss


class _Pipe:
    """One direction of a stream: what was written, and when it arrives."""

    def __init__(self, wire: _Wire, *, is_lossy: bool) -> None:
        self._wire = wire
        self._is_lossy = is_lossy
        self._parts: deque[tuple[float, memoryview]] = deque()
        self._unread = 0
        self._last_arrival = 0.0
        self._signal = Signal()
        self._broken = trio.Event()
        self._is_closed = False

    async def write(self, data: bytes) -> None:
        """Take the time that the wire takes; what is written arrives in order."""
        if self._is_lossy and self._wire.is_lost():
            await trio.lowlevel.checkpoint()
            return
        view = memoryview(data)
        step = len(view) if math.isinf(self._wire.conditions.bandwidth_bytes_s) else FRAME_BYTES
        for start in range(0, len(view), max(step, 1)):
            await self._write_part(view[start : start + step])

    async def _write_part(self, part: memoryview) -> None:
        while self._unread > WINDOW_BYTES and not self._broken.is_set():
            await self._signal.wait()
        if self._broken.is_set() or self._is_closed:
            raise StreamError("stream: broken while writing")
        departure = self._wire.compute_departure(len(part))
        arrival = departure + self._wire.conditions.latency_s
        if not self._is_lossy and self._wire.is_lost():
            arrival += RETRANSMIT_S + 2 * self._wire.conditions.latency_s
        self._last_arrival = max(self._last_arrival, arrival)
        self._parts.append((self._last_arrival, part))
        self._unread += len(part)
        self._signal.notify()
        with trio.move_on_at(departure):
            await self._broken.wait()
        await trio.lowlevel.checkpoint()

    async def read(self, max_bytes: int) -> bytes:
        """What has arrived, at most `max_bytes` of it."""
        while True:
            if self._broken.is_set():
                raise StreamError("stream: reset")
            if not self._parts:
                if self._is_closed:
                    raise StreamError("stream: at its end")
                await self._signal.wait()
                continue
            arrival, _ = self._parts[0]
            if arrival > trio.current_time():
                with trio.move_on_at(arrival):
                    await self._broken.wait()
                continue
            await trio.lowlevel.checkpoint()
            return self._take(max_bytes)

    def _take(self, max_bytes: int) -> bytes:
        if not self._parts:
            raise StreamError("stream: reset")
        arrival, part = self._parts.popleft()
        if len(part) > max_bytes:
            self._parts.appendleft((arrival, part[max_bytes:]))
        data = bytes(part[:max_bytes])
        self._unread -= len(data)
        self._signal.notify()
        return data

    @property
    def is_broken(self) -> bool:
        return self._broken.is_set()

    def close(self) -> None:
        self._is_closed = True
        self._signal.notify()

    def break_off(self) -> None:
        self._parts.clear()
        self._broken.set()
        self._signal.notify()


class MemoryStream:
    """One end of a stream between two nodes of a hub."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def read_some(self, max_bytes: int) -> bytes:
        """Between 1 and `max_bytes` bytes; raises StreamError at the end."""
        return await self._incoming.read(max_bytes)

    async def write(self, data: bytes) -> None:
        """Send all of `data`; raises StreamError on a broken stream."""
        await self._outgoing.write(data)

    async def close(self) -> None:
        """Nothing more will be written."""
        self._outgoing.close()

    async def reset(self) -> None:
        """End both directions at once."""
        self.break_off()

    def break_off(self) -> None:
        """As `reset`."""
        self._incoming.break_off()
        self._outgoing.break_off()

    @property
    def is_over(self) -> bool:
        """Whether the stream was reset."""
        return self._incoming.is_broken


class _Connection:
    """Two connected nodes and their open streams."""

    def __init__(self, ends: tuple["_MemoryTransport", "_MemoryTransport"]) -> None:
        self.ends = ends
        self.streams: list[MemoryStream] = []

    def other(self, key: bytes) -> "_MemoryTransport":
        return self.ends[1] if self.ends[0].key == key else self.ends[0]


class _MemoryTransport:
    """A node's place in the hub."""

    def __init__(self, hub: "MemoryHub", key: bytes, address: str) -> None:
        self.key = key
        self.address = address
        self.connections: dict[bytes, _Connection] = {}
        self.node: MemoryNode
        self._hub = hub

    def addresses(self) -> tuple[str, ...]:
        return (self.address,)

    async def dial(self, key: bytes, address: str) -> None:
        await self._hub.connect(self, key, address)

    async def open_stream(self, key: bytes, protocol: str) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        connection = self.connections.get(key)
        if connection is None:
            raise NetworkError(f"peer {key.hex()[:16]}: not connected")
        return self._hub.open_stream(connection, self, protocol)

    async def disconnect(self, key: bytes) -> None:
        await trio.lowlevel.checkpoint()
        connection = self.connections.get(key)
        if connection is not None:
            self._hub.disconnect(connection)


class MemoryNode(BaseNode):
    """A node of a `MemoryHub`; made by `MemoryHub.open_node`."""

    def start_serving(self, key: bytes, protocol: str, stream: MemoryStream) -> None:
        """A peer opened a stream."""
        self._start_soon(self.handle_stream, key, protocol, stream)


class MemoryHub:
    """The simulated network between `MemoryNode`s.

    Args:
        rng: the source of all chance: loss, and the jitter of redialing.
        link: what links are like that were not set otherwise.
    """

    def __init__(self, rng: random.Random, link: LinkConditions | None = None) -> None:
        self._seed = rng.getrandbits(64)
        self._default = link or LinkConditions()
        self._places: dict[str, _MemoryTransport] = {}
        self._wires: dict[tuple[bytes, bytes], _Wire] = {}
        self._cuts: set[frozenset[bytes]] = set()
        self._count = 0

    @asynccontextmanager
    async def open_node(
        self, identity: Identity, data_dir: Path, *, limits: NetworkLimits | None = None
    ) -> AsyncIterator[MemoryNode]:
        """A running node; it is gone, with all its connections, when the block ends."""
        self._count += 1
        place = _MemoryTransport(self, identity.public, f"/memory/{self._count}")
        node = MemoryNode(
            identity, place, data_dir, limits=limits or NetworkLimits(),
            rng=self._build_rng(b"node", identity.public), run_io=run_inline,
        )  # fmt: skip
        place.node = node
        async with node.running():
            self._places[place.address] = place
            try:
                yield node
            finally:
                del self._places[place.address]
                for connection in list(place.connections.values()):
                    self.disconnect(connection)

    # the links

    def set_link(self, first: bytes, second: bytes, conditions: LinkConditions) -> None:
        """Both directions between two keys; holds for what is written from now on."""
        for pair in ((first, second), (second, first)):
            self._get_wire(*pair).conditions = conditions

    def set_uplink(self, source: bytes, target: bytes, conditions: LinkConditions) -> None:
        """One direction between two keys."""
        self._get_wire(source, target).conditions = conditions

    def cut(self, first: Iterable[bytes], second: Iterable[bytes]) -> None:
        """No connection between the two groups until `heal`; open ones break."""
        others = list(second)
        for a in first:
            self._cuts.update(frozenset((a, b)) for b in others if a != b)
        for place in list(self._places.values()):
            for connection in list(place.connections.values()):
                if self._is_cut(connection.ends[0].key, connection.ends[1].key):
                    self.disconnect(connection)

    def partition(self, *groups: Sequence[bytes]) -> None:
        """Cut the groups from one another."""
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                self.cut(group, other)

    def heal(self) -> None:
        """Undo all cuts; the nodes find each other again by redialing."""
        self._cuts.clear()

    def _is_cut(self, first: bytes, second: bytes) -> bool:
        return frozenset((first, second)) in self._cuts

    def _get_wire(self, source: bytes, target: bytes) -> _Wire:
        wire = self._wires.get((source, target))
        if wire is None:
            wire = self._wires[source, target] = _Wire(self._default, self._build_rng(source, target))
        return wire

    def _build_rng(self, *names: bytes) -> random.Random:
        """Chance of one link or node: independent of what the others do, and in which order."""
        return random.Random(b"/".join((self._seed.to_bytes(8, "little"), *names)))  # noqa: S311 - a simulation

    # connections

    async def connect(self, dialer: _MemoryTransport, key: bytes, address: str) -> None:
        """Connect `dialer` with the node at `address`.

        Raises:
            NetworkError: nobody there, cut off, or another key.
        """
        there = self._get_wire(dialer.key, key).conditions.latency_s
        back = self._get_wire(key, dialer.key).conditions.latency_s
        await trio.sleep(2 * (there + back))  # connecting and proving the key are two round trips
        place = self._places.get(address)
        if place is None or self._is_cut(dialer.key, key) or dialer.address not in self._places:
            raise NetworkError(f"peer {key.hex()[:16]}: nobody answers at {address}")
        if place.key != key:
            raise NetworkError(f"peer {key.hex()[:16]}: another key answers at {address}")
        if key in dialer.connections:
            return
        connection = _Connection((dialer, place))
        dialer.connections[key] = place.connections[dialer.key] = connection
        dialer.node.peers.add_connection(key, is_dialer=True)
        place.node.peers.add_connection(dialer.key, is_dialer=False)

    def open_stream(self, connection: _Connection, opener: _MemoryTransport, protocol: str) -> MemoryStream:
        """A stream from `opener`; the other node serves its end."""
        other = connection.other(opener.key)
        is_lossy = protocol == GOSSIP
        there = _Pipe(self._get_wire(opener.key, other.key), is_lossy=is_lossy)
        back = _Pipe(self._get_wire(other.key, opener.key), is_lossy=is_lossy)
        near, far = MemoryStream(back, there), MemoryStream(there, back)
        connection.streams = [s for s in connection.streams if not s.is_over]
        connection.streams += [near, far]
        other.node.start_serving(opener.key, protocol, far)
        return near

    def disconnect(self, connection: _Connection) -> None:
        """Break a connection at both ends."""
        for stream in connection.streams:
            stream.break_off()
        for end, other in (connection.ends, connection.ends[::-1]):
            if end.connections.get(other.key) is connection:
                del end.connections[other.key]
                end.node.peers.remove_connections(other.key)
