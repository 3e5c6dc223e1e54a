"""Simulated TCP between machines: listeners and streams over the same links that the nodes use."""

import errno
from dataclasses import dataclass

import trio

from psyche.network.links import Links, MemoryStream
from psyche.network.streams import StreamError

BACKLOG = 1_024
REFUSED_S = 0.001  # a machine that runs nothing on a port answers at once


class TcpStream(trio.abc.Stream):
    """One end of a connection."""

    def __init__(self, stream: MemoryStream) -> None:
        self._stream = stream
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything; raises trio's errors of a broken or closed stream."""
        self._check_open()
        try:
            await self._stream.write(bytes(data))
        except StreamError as error:
            raise trio.BrokenResourceError("connection reset") from error
        self._check_open()

    async def wait_send_all_might_not_block(self) -> None:
        """Writing waits by itself."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come; empty at the end."""
        self._check_open()
        try:
            return await self._stream.read_some(max_bytes or 1 << 16)
        except StreamError as error:
            self._check_open()
            if self._stream.incoming.is_closed and not self._stream.incoming.is_broken:
                return b""
            raise trio.BrokenResourceError("connection reset") from error

    async def aclose(self) -> None:
        """What was sent still arrives; what the other end sends from now on fails."""
        if not self._closed:
            self._closed = True
            self._stream.outgoing.close()
            self._stream.incoming.break_off()
        await trio.lowlevel.checkpoint()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("this end was closed")


class TcpListener(trio.abc.Listener[TcpStream]):
    """Accepts connections to one port of one machine."""

    def __init__(self, network: "Tcp", place: tuple[str, int]) -> None:
        self.send, self._receive = trio.open_memory_channel[TcpStream](BACKLOG)
        self._network = network
        self._place = place

    async def accept(self) -> TcpStream:
        """The next connection."""
        try:
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise trio.ClosedResourceError("this listener was closed") from error

    async def aclose(self) -> None:
        """Nobody is accepted any more."""
        self._network.close_listener(self._place, self)
        self._receive.close()
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    ends: tuple[bytes, bytes]
    stream: MemoryStream


class Tcp:
    """All TCP of a simulated world. A machine is named by its key on the links and by its host name.

    Args:
        links: what connections run over.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self._listeners: dict[tuple[str, int], TcpListener] = {}
        self._keys: dict[str, bytes] = {}
        self._open: list[_Connection] = []
        links.on_cut.append(self._break_cut)

    @property
    def open_connections(self) -> int:
        """How many connections there are."""
        self._prune()
        return len(self._open)

    def add_machine(self, host: str, key: bytes) -> None:
        """Make a machine known by its name."""
        self._keys[host] = key

    def listen(self, host: str, port: int) -> TcpListener:
        """Accept connections from now on.

        Raises:
            OSError: something listens there already.
        """
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = self._listeners[host, port] = TcpListener(self, (host, port))
        return listener

    def close_listener(self, place: tuple[str, int], listener: TcpListener) -> None:
        """The listener is gone."""
        if self._listeners.get(place) is listener:
            del self._listeners[place]

    async def connect(self, source: bytes, host: str, port: int) -> TcpStream:
        """Connect from a machine.

        Raises:
            OSError: nobody listens there, or the two are cut off (after the time that TCP takes to say so).
        """
        target = self._keys[host]
        await trio.sleep(max(REFUSED_S, self._links.get_round_trip_s(source, target)))
        for wire in (self._links.get_wire(source, target), self._links.get_wire(target, source)):
            if wire.stall is not None:
                await wire.stall.wait()  # bounded by the caller's own time-out
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
        """A machine's processes are gone: its connections are reset, its ports are closed."""
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
