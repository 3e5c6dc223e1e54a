"""A way to an endpoint over real sockets that a test breaks as it likes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import trio

from psyche.backends.solana.cluster import Endpoint
from psyche.localchain.chain import LocalChain

BUSY = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"
CUT_BYTES = 700  # of an answer, then the connection is gone: in the midst of a frame
HELD_S = 3.0  # longer than a client waits for an answer


class FaultyEndpoint:
    """A way to an endpoint. `fault` is "", dead, stall, busy, cut or late.

    dead: nothing listens, and connections are gone. stall: they stay open, and nothing comes. busy: HTTP 429. cut:
    connections end within an answer. late: transactions are passed on after the client has given up their answer.
    """

    def __init__(self, chain: LocalChain) -> None:
        self.fault = ""
        self._chain = chain
        self._changed = trio.Event()
        self._ports: list[int] = []
        self._scopes: set[trio.CancelScope] = set()

    @property
    def endpoint(self) -> Endpoint:
        http, ws = self._ports
        return Endpoint(f"http://127.0.0.1:{http}", f"ws://127.0.0.1:{ws}")

    def set_fault(self, fault: str) -> None:
        self.fault = fault
        if fault in ("dead", "cut"):
            for scope in list(self._scopes):
                scope.cancel()

    async def serve(self, nursery: trio.Nursery) -> None:
        for address in (self._chain.http, self._chain.ws):
            port = urlsplit(address).port
            assert port is not None

            async def carry(client: trio.SocketStream, port: int = port) -> None:
                await self._carry(client, port)

            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self._ports.append(listener.socket.getsockname()[1])
            nursery.start_soon(trio.serve_listeners, carry, [listener])

    async def _carry(self, client: trio.SocketStream, port: int) -> None:
        trouble = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
        with trio.CancelScope() as scope, suppress(*trouble):  # pyright: ignore[reportCallIssue]
            self._scopes.add(scope)
            try:
                if self.fault == "dead":
                    return
                async with await trio.open_tcp_stream("127.0.0.1", port) as chain, trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, client, chain, nursery.cancel_scope)
                    await self._return(chain, client)
                    nursery.cancel_scope.cancel()
            finally:
                self._scopes.discard(scope)
                await trio.aclose_forcefully(client)

    async def _forward(self, client: trio.SocketStream, chain: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for part in client:
                if self.fault == "stall":
                    continue
                if self.fault == "busy":
                    await client.send_all(BUSY)
                    break
                if self.fault == "late" and b"sendTransaction" in part:
                    await trio.sleep(HELD_S)
                await chain.send_all(part)
        scope.cancel()

    async def _return(self, chain: trio.SocketStream, client: trio.SocketStream) -> None:
        count = 0
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # either end may reset the connection
            async for part in chain:
                if self.fault == "stall":
                    continue
                if self.fault == "cut" and count + len(part) > CUT_BYTES:
                    await client.send_all(part[: CUT_BYTES - count])
                    return
                count += len(part)
                await client.send_all(part)


@asynccontextmanager
async def open_faulty(chain: LocalChain) -> AsyncGenerator[FaultyEndpoint]:
    """A way to the chain that a test can break."""
    faulty = FaultyEndpoint(chain)
    async with trio.open_nursery() as nursery:
        await faulty.serve(nursery)
        yield faulty
        nursery.cancel_scope.cancel()
