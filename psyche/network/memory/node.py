"""The in-memory twin of the libp2p node: the node of `base.py` over simulated links.

One thing above the streams differs. With more than `STREAMED_MEMBERS` members, or on lines that lose or
duplicate packets, announcements are separate packets (`links.Lane`) and not messages of an outbox on a stream:
the streams would be too many, and streams lose nothing. Every peer gets announcements directly, without a mesh.

Links have latency, bandwidth and loss, and can be cut; everything runs on trio's clock, so a
`MockClock` runs hours in seconds. All randomness comes from the `random.Random` that the hub is given:

    hub = MemoryHub(random.Random(7), LinkConditions(latency_s=0.05, bandwidth_bytes_s=1e6))
    async with hub.open_node(identity, folder) as node:
        ...
"""

import functools
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from psyche.errors import NetworkError
from psyche.network.base import BaseNode
from psyche.network.blobs.store import RunIo, run_inline
from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.links import Lane, Links
from psyche.network.memory.pipe import MemoryStream, Weigh
from psyche.network.peers import Peer
from psyche.network.streams import BLOB
from psyche.network.unread import UnreadBudget
from psyche.wire.crypto import Identity

STREAMED_MEMBERS: Final = 16  # with more members announcements do not use streams: 256 members would need 65,280


class _Connection:
    def __init__(self, ends: tuple["_MemoryTransport", "_MemoryTransport"]) -> None:
        self.ends = ends
        self.streams: list[MemoryStream] = []
        self.lanes: dict[bytes, Lane] = {}

    def close(self) -> None:
        for stream in self.streams:
            stream.break_off()
        for lane in self.lanes.values():
            lane.is_broken = True
        for end, other in (self.ends, self.ends[::-1]):
            if end.connections.get(other.key) is self:
                del end.connections[other.key]
                end.node.peers.remove_connections(other.key)


class _MemoryTransport:
    def __init__(self, hub: "MemoryHub", key: bytes, address: str) -> None:
        self.key = key
        self.address = address
        self.connections: dict[bytes, _Connection] = {}
        self.node: MemoryNode
        self._hub = hub
        self._links = hub.links

    def addresses(self) -> tuple[str, ...]:
        return (self.address,)

    async def dial(self, key: bytes, address: str) -> None:
        # TCP connect and proof of the key take two round trips
        await trio.sleep(2 * self._links.get_round_trip_s(self.key, key))
        place = self._hub.places.get(address)
        if place is None or self._links.is_cut(self.key, key) or self.address not in self._hub.places:
            raise NetworkError(f"peer {key.hex()[:16]}: nobody answers at {address}")
        if place.key != key:
            raise NetworkError(f"peer {key.hex()[:16]}: another key answers at {address}")
        if key in self.connections:
            return
        self.connections[key] = place.connections[self.key] = _Connection((self, place))
        self.node.peers.add_connection(key, is_dialer=True)
        place.node.peers.add_connection(self.key, is_dialer=False)

    async def open_stream(self, key: bytes, protocol: str) -> MemoryStream:
        await trio.lowlevel.checkpoint()
        connection = self.connections.get(key)
        if connection is None:
            raise NetworkError(f"peer {key.hex()[:16]}: not connected")
        weigh = self._hub.weigh_blobs if protocol == BLOB else None
        near, far = self._links.open_pair(self.key, key, answer_weigh=weigh)
        connection.streams = [s for s in connection.streams if not s.is_over]
        connection.streams += [near, far]
        other = self._get_other(connection)
        other.start_soon(other.handle_stream, self.key, protocol, far)
        return near

    def _get_other(self, connection: _Connection) -> "MemoryNode":
        first, second = connection.ends
        return second.node if first is self else first.node

    async def disconnect(self, key: bytes) -> None:
        await trio.lowlevel.checkpoint()
        connection = self.connections.get(key)
        if connection is not None:
            connection.close()

    def is_lossy(self, key: bytes) -> bool:
        conditions = self._links.get_wire(self.key, key).conditions
        return conditions.loss > 0 or conditions.duplicate > 0

    def get_lane(self, key: bytes) -> Lane | None:
        connection = self.connections.get(key)
        if connection is None:
            return None
        if self.key not in connection.lanes:
            receive = functools.partial(self._get_other(connection).take_announcement, self.key)
            waiting = self.node.limits.outbox_messages
            connection.lanes[self.key] = self._links.open_lane(self.key, key, waiting, receive)
        return connection.lanes[self.key]


class MemoryNode(BaseNode):
    place: _MemoryTransport

    def _announce(self, keys: Iterable[bytes], message: bytes) -> None:
        """Announce over streams as in production, or as packets if streams would be too many or the link is lossy.

        A stream loses nothing, but a mesh does; the protocol must tolerate both.
        """
        is_crowd = len(self.peers.allowed | {self.key}) > STREAMED_MEMBERS
        by_stream: list[bytes] = []
        for key in keys:
            if is_crowd or self.place.is_lossy(key):
                self.send_to(key, message)
            else:
                by_stream.append(key)
        super()._announce(by_stream, message)

    async def _broadcast(self, message: bytes) -> None:
        # there is no mesh here: peers beyond those of `publish` get the message directly too
        if len(self.peers.allowed - {self.key}) > self.limits.direct_peers:
            self._announce(sorted(self.connected()), message)

    def count_streams(self) -> int:
        connections = self.place.connections.values()
        return max((sum(not end.is_over for end in one.streams) // 2 for one in connections), default=0)

    def send_to(self, key: bytes, message: bytes) -> None:
        """Send gossip to one connected peer only, as a dishonest node may do."""
        lane = self.place.get_lane(key)
        if lane is not None:
            self._statistics.bytes_sent += len(message)
            lane.send(message)

    def take_announcement(self, origin: bytes, message: bytes) -> None:
        """Take an announcement packet from a peer; it is kept until the peer completes hello."""
        peer = self.peers.get(origin)
        if peer is None:
            return
        if peer.admitted.is_set():
            self._inbox.take(origin, message)
        else:
            self.start_soon(self._take_early, peer, message)

    async def _take_early(self, peer: Peer, message: bytes) -> None:
        with trio.move_on_after(self.limits.hello_s):
            await peer.admitted.wait()
            self._inbox.take(peer.key, message)


class MemoryHub:
    """The simulated network between `MemoryNode`s; `links` may be shared with other traffic.

    `weigh_blobs` maps the size of a reply's write to the bytes it takes on the line, for small blobs that
    stand for larger ones; requests keep their size.
    """

    def __init__(
        self, rng: random.Random, link: LinkConditions | None = None, *, links: Links | None = None,
        weigh_blobs: Weigh = float,
    ) -> None:  # fmt: skip
        self.links = links or Links(rng, link)
        self.weigh_blobs = weigh_blobs
        self.places: dict[str, _MemoryTransport] = {}
        self._count = 0
        self.links.on_cut.append(self._close_cut)

    @asynccontextmanager
    async def open_node(
        self, identity: Identity, data_dir: Path, *, limits: NetworkLimits | None = None, run_io: RunIo = run_inline,
        get_unix: Callable[[], int] | None = None, address: str | None = None,
    ) -> AsyncIterator[MemoryNode]:  # fmt: skip
        """`address`: where others find the node every time; if not given, each has an address of its own."""
        self._count += 1
        place = _MemoryTransport(self, identity.public, address or f"/memory/{self._count}")
        limits = limits or NetworkLimits()
        unread = UnreadBudget(limits.unread_bytes, limits.unread_per_connection_bytes, limits.cut_rest_s)
        node = MemoryNode(
            identity, place, data_dir, limits=limits, rng=self.links.build_rng(b"node", identity.public),
            run_io=run_io, get_unix=get_unix, unread=unread,
        )  # fmt: skip
        place.node, node.place = node, place
        async with node.running():
            self.places[place.address] = place
            try:
                yield node
            finally:
                del self.places[place.address]
                for connection in list(place.connections.values()):
                    connection.close()

    def _iter_connections(self) -> Iterator[tuple[_MemoryTransport, _Connection]]:
        for place in list(self.places.values()):
            for connection in list(place.connections.values()):
                yield place, connection

    def _close_cut(self) -> None:
        for _, connection in self._iter_connections():
            if self.links.is_cut(connection.ends[0].key, connection.ends[1].key):
                connection.close()

    def drop(self, key: bytes) -> None:
        """Break all connections of a node at once, as if its process had died."""
        for place, connection in self._iter_connections():
            if place.key == key:
                connection.close()
