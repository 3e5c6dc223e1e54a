"""Somebody on the line between a client and a server: reads what goes by, and adds to it, changes it or ends it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

READ_BYTES = 1 << 16
Change = Callable[[bytes], bytes]


@dataclass(eq=False)
class Session:
    """One connection that goes through the middle, and all that went by."""

    client: trio.SocketStream
    server: trio.SocketStream
    to_server: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)
    change_to_server: Change = bytes
    change_to_client: Change = bytes
    ended: trio.Event = field(default_factory=trio.Event)

    async def run(self) -> None:
        """Carry bytes both ways until one of the ends closes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry_to_server, nursery.cancel_scope)
            nursery.start_soon(self._carry_to_client, nursery.cancel_scope)
        await self.hang_up()
        self.ended.set()

    async def hang_up(self) -> None:
        """Cut the line."""
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
    """Where the line goes through.

    Args:
        port: where the server listens, on this machine.
    """

    def __init__(self, port: int) -> None:
        self.port = 0  # where clients connect instead
        self.sessions: list[Session] = []
        self.change_to_server: Change = bytes  # of sessions to come; those that run have their own
        self.change_to_client: Change = bytes
        self.instead: Callable[[trio.SocketStream], Awaitable[None]] | None = None  # answers in the server's place
        self._server_port = port

    async def handle(self, client: trio.SocketStream) -> None:
        """One connection, from its first byte to its end."""
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
    """Serve connections at a free port of this machine; the port."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_middle(server_port: int) -> AsyncIterator[Middle]:
    """Somebody between the clients, which connect to `Middle.port`, and the server."""
    middle = Middle(server_port)
    async with open_port(middle.handle) as middle.port:
        yield middle
