"""A way to a server of files that counts the bytes that come out of it."""

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import trio


@dataclass
class CountingWay:
    server_port: int
    address: str = ""
    sent_bytes: int = 0
    on_sent: Callable[[], None] = lambda: None

    async def handle(self, client: trio.SocketStream) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)  # what waits in between counts as sent
        async with (
            client, await trio.open_tcp_stream("127.0.0.1", self.server_port) as server, trio.open_nursery() as tasks,
        ):  # fmt: skip
            tasks.start_soon(self._ask, client, server)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for part in server:
                    await client.send_all(part)
                    self.sent_bytes += len(part)
                    self.on_sent()
            tasks.cancel_scope.cancel()

    async def _ask(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for part in client:
                await server.send_all(part)
            await server.send_eof()


@asynccontextmanager
async def open_counting_way(server: str) -> AsyncGenerator[CountingWay]:
    port = urlsplit(server).port
    assert port is not None
    way = CountingWay(port)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        way.address = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, way.handle, listeners)
        yield way
        nursery.cancel_scope.cancel()
