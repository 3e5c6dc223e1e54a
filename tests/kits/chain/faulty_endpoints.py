"""Endpoints with faults, over real sockets: one that a test breaks as it likes, one that stays behind."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import trio
from solders.account import Account
from solders.transaction import VersionedTransaction

from psyche.backends.solana.cluster import Endpoint
from psyche.localchain.bank import FAUCET_LAMPORTS, SYSTEM, Bank, CompleteSlot, begin_chain
from psyche.localchain.chain import LocalChain
from psyche.localchain.machine import VirtualMachine, load_programs
from psyche.localchain.rpc.hub import SubscriptionHub
from psyche.localchain.rpc.methods import make_methods
from psyche.localchain.rpc.web import bind_pair, make_http_app, make_socket_app, serve_app

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
        async for part in chain:
            if self.fault == "stall":
                continue
            if self.fault == "cut" and count + len(part) > CUT_BYTES:
                await client.send_all(part[: CUT_BYTES - count])
                return
            count += len(part)
            await client.send_all(part)


class StaleTwin:
    """The same chain, so many slots later: it carries out what landed again, in the same slots."""

    def __init__(self, bank: Bank, lag_slots: int) -> None:
        assert bank.slot == 1, "a twin grows up with its chain"
        self.bank = Bank(VirtualMachine(load_programs()), begin_chain(bytes(bank.genesis), bank.unix))
        self.bank.advance(bank.unix)
        self._faucet = Account(FAUCET_LAMPORTS, b"", SYSTEM)
        self._main, self._lag_slots = bank, lag_slots
        self._waiting: deque[tuple[CompleteSlot, int, int]] = deque()
        self._next: tuple[int, int] | None = None  # the time of the slot that follows, and the skipped slots before it
        bank.on_block.append(self._note)

    def _note(self, block: CompleteSlot) -> None:
        self._waiting.append((block, self._main.unix, self._main.slot - block.slot - 1))
        while len(self._waiting) > self._lag_slots:
            block, unix, skipped = self._waiting.popleft()
            if self._next is not None:
                self.bank.advance(*self._next)
            for record in block.records:  # nobody sees this slot without what landed in it
                if self.bank.get_account(record.keys[0]) is None:  # the faucet of the other one
                    self.bank.machine.put_account(record.keys[0], self._faucet)
                self.bank._carry_out(VersionedTransaction.from_bytes(record.raw))
            self._next = unix, skipped


@asynccontextmanager
async def open_stale(chain: LocalChain, lag_slots: int) -> AsyncGenerator[Endpoint]:
    """An endpoint that is behind; transactions get through it at once."""
    twin = StaleTwin(chain.bank, lag_slots)
    methods = {**make_methods(twin.bank), "sendTransaction": make_methods(chain.bank)["sendTransaction"]}
    http, ws = bind_pair("127.0.0.1", 0)
    port = http.getsockname()[1]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(make_http_app(methods), http))
        await stack.enter_async_context(serve_app(make_socket_app(SubscriptionHub(twin.bank)), ws))
        yield Endpoint(f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port + 1}")


@asynccontextmanager
async def open_faulty(chain: LocalChain) -> AsyncGenerator[FaultyEndpoint]:
    """A way to the chain that a test can break."""
    faulty = FaultyEndpoint(chain)
    async with trio.open_nursery() as nursery:
        await faulty.serve(nursery)
        yield faulty
        nursery.cancel_scope.cancel()
