"""A man in the middle between a client and a server: it reads the traffic, adds to it, changes it or cuts it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

READ_BYTES = 1 << 16
Change = Callable[[bytes], bytes]


@dataclass(eq=False)
class Session:
    """One connection through the middle, and its traffic."""

    client: trio.SocketStream
    server: trio.SocketStream
    to_server: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    change_to_server: Change = bytes
    change_to_client: Change = bytes
    ended: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        """Copy bytes both ways until one end closes, or the middle does."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._carry_to_server, nursery.cancel_scope)
                nursery.start_soon(self._carry_to_client, nursery.cancel_scope)
        finally:
            with trio.CancelScope(shield=True):  # pyright: ignore[reportCallIssue]
                await self.hang_up()
            self.ended.set()

    async def hang_up(self) -> None:
        await trio.aclose_forcefully(self.client)
        await trio.aclose_forcefully(self.server)

    async def _carry_to_server(self, scope: trio.CancelScope) -> None:
        while data := await _read(self.client):
            self.to_server += data
            await _write(self.server, self.change_to_server(data))
        scope.cancel()

    async def _carry_to_client(self, scope: trio.CancelScope) -> None:
        while data := await _read(self.server):
            self.to_client += data
            await _write(self.client, self.change_to_client(data))
        scope.cancel()


async def _read(stream: trio.SocketStream) -> bytes:
    try:
        return bytes(await stream.receive_some(READ_BYTES))
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return b""


async def _write(stream: trio.SocketStream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # the other direction notices


class Middle:
    """The man in the middle.

    Args:
        port: the server's port on this machine.
    """

    def __init__(self, port: int) -> None:
        self.port = 0  # the port for clients to connect to
        self.sessions: list[Session] = []
        self.change_to_server: Change = bytes  # for new sessions; a running session has its own
        self.change_to_client: Change = bytes
        self.instead: Callable[[trio.SocketStream], Awaitable[None]] | None = None  # in place of the server
        self._server_port = port

    async def handle(self, client: trio.SocketStream) -> None:
        if self.instead is not None:
            await self.instead(client)
            return
        server = await trio.open_tcp_stream("127.0.0.1", self._server_port)
        session = Session(
            client, server, change_to_server=self.change_to_server, change_to_client=self.change_to_client
        )
        self.sessions.append(session)
        await session.run()


@asynccontextmanager
async def open_port(serve: Callable[[trio.SocketStream], Awaitable[object]]) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_middle(server_port: int) -> AsyncIterator[Middle]:
    """Open a middle between the server and clients that connect to `Middle.port`."""
    middle = Middle(server_port)
    async with open_port(middle.handle) as middle.port:
        yield middle
