"""Simulated TCP between machines: listeners and streams over the same links that the nodes use."""

import errno
from dataclasses import dataclass

import trio

from psyche.network.memory.links import Links
from psyche.network.memory.pipe import MemoryStream
from psyche.network.streams import StreamError

BACKLOG = 1_024
REFUSED_S = 0.001  # a machine without a listener on the port refuses at once


class TcpStream(trio.abc.Stream):
    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._check_open()
        try:
            await self._stream.write(bytes(data))
        except StreamError as error:
            raise trio.BrokenResourceError("connection reset") from error
        self._check_open()

    async def wait_send_all_might_not_block(self) -> None:
        """Do nothing: `send_all` itself waits for room."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """The bytes that have arrived; empty at the end of the stream."""
        self._check_open()
        try:
            return await self._stream.read_some(max_bytes or 1 << 16)
        except StreamError as error:
            self._check_open()
            if self._stream.incoming.is_closed and not self._stream.incoming.is_broken:
                return b""
            raise trio.BrokenResourceError("connection reset") from error

    async def aclose(self) -> None:
        """Close this end: sent bytes still arrive, and the other end's further sends fail."""
        if not self._closed:
            self._closed = True
            self._stream.outgoing.close()
            self._stream.incoming.break_off()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")


class TcpListener(trio.abc.Listener[TcpStream]):
    def __init__(self, network: "Tcp", place: tuple[str, int]) -> None:
        self.send, self._receive = trio.open_memory_channel[TcpStream](BACKLOG)
        self._network = network
        self._place = place

    async def accept(self) -> TcpStream:
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise trio.ClosedResourceError("this listener was closed") from error

    async def aclose(self) -> None:
        self._network.close_listener(self._place, self)
        self._receive.close()
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    ends: tuple[bytes, bytes]
    stream: MemoryStream


class Tcp:
    """All TCP of a simulated world. A machine has its key on the links, and a host name.

    Args:
        links: the links that connections use.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._listeners: dict[tuple[str, int], TcpListener] = {}
        self._keys: dict[str, bytes] = {}
        self._open: list[_Connection] = []
        links.on_cut.append(self._break_cut)

    @property
    def open_connections(self) -> int:
        self._prune()
        return len(self._open)

    def add_machine(self, host: str, key: bytes) -> None:
        self._keys[host] = key

    def listen(self, host: str, port: int) -> TcpListener:
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[host, port] = TcpListener(self, (host, port))
        return listener

    def close_listener(self, place: tuple[str, int], listener: TcpListener) -> None:
        if self._listeners.get(place) is listener:
            del self._listeners[place]

    async def connect(self, source: bytes, host: str, port: int) -> TcpStream:
        """Connect from one machine to another.

        Raises:
            OSError: nobody listens there, or the link is cut (raised after one round trip).
        """
        target = self._keys[host]
        await trio.sleep(max(REFUSED_S, self._links.get_round_trip_s(source, target)))
        for wire in (self._links.get_wire(source, target), self._links.get_wire(target, source)):
            if wire.stall is not None:
                await wire.stall.wait()  # bounded by the caller's time-out
        listener = self._listeners.get((host, port))
        if listener is None or self._links.is_cut(source, target):
            raise OSError(errno.ECONNREFUSED, "Connection refused")
        near, far = self._links.open_pair(source, target)
        try:
            listener.send.send_nowait(TcpStream(far))
        except (trio.WouldBlock, trio.BrokenResourceError) as error:
            raise OSError(errno.ECONNREFUSED, "Connection refused") from error
        self._prune()
        self._open.append(_Connection((source, target), near))
        return TcpStream(near)

    def drop(self, key: bytes) -> None:
        """A machine's processes have died: reset its connections and close its ports."""
        for host, port in [place for place in self._listeners if self._keys[place[0]] == key]:
            del self._listeners[host, port]
        self._break([c for c in self._open if key in c.ends])

    def _break_cut(self) -> None:
        self._break([c for c in self._open if self._links.is_cut(*c.ends)])

    def _break(self, connections: list[_Connection]) -> None:
        for connection in connections:
            connection.stream.break_off()
        self._prune()

    def _prune(self) -> None:
        self._open = [c for c in self._open if not (c.stream.is_over or c.stream.outgoing.is_broken)]
