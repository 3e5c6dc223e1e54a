"""Rate limits for connections: token buckets, and turns for handshakes.

Handshakes take turns, so that a flood of them blocks neither connected clients nor newcomers from other hosts (K6).

A step of a TLS handshake occupies the event loop for a third of a millisecond. Steps are not computed in one go:
after each step, every other task that is ready runs once. Addresses take turns, so that the address with the most
handshakes waits longest.
"""

import ipaddress
import os
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

IPV6_PREFIX_BITS: Final = 64  # the budget of one subscriber
MAX_WAITING_PER_HOST: Final = 64  # fewer than places, so that a flood is turned away before it takes one (K6, K7)


class HostTurns:
    """Gives addresses turns, one at a time; the next turn begins one pass of trio's scheduler after the last."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[trio.Event]] = {}  # in order of turns: after its turn an address goes to the end
        self._is_running = False

    def is_full(self, host: str) -> bool:
        """Whether so many connections of this address wait that another one has to be turned away."""
        return len(self._waiting.get(host, ())) >= MAX_WAITING_PER_HOST

    async def wait(self, host: str) -> None:
        async with self.turn(host):
            pass

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncGenerator[None, None]:
        """Wait for this address's turn and hold it while the block runs."""
        turn = trio.Event()
        self._waiting.setdefault(host, deque()).append(turn)
        if not self._is_running:
            self._is_running = True
            self._give()
        try:
            await turn.wait()
            yield
        finally:
            if turn.is_set():
                self._give()
            else:
                self._drop(host, turn)

    def _give(self) -> None:
        """Give the turn to the next waiter, which passes it on when it is done."""
        if not self._waiting:
            self._is_running = False
            return
        host = next(iter(self._waiting))
        turns = self._waiting.pop(host)
        turns.popleft().set()
        if turns:
            self._waiting[host] = turns

    def _drop(self, host: str, turn: trio.Event) -> None:
        turns = self._waiting[host]
        turns.remove(turn)
        if not turns:
            del self._waiting[host]


class TokenBucket:
    """Limits a rate: `burst` at once, `per_s` in the long run. `now` is in seconds."""

    def __init__(self, per_s: float, burst: float, now: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._at = burst, now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class PacedStream(trio.abc.Stream):
    """A connection below TLS that passes bytes on in turns until the TLS handshake is over."""

    def __init__(self, transport_stream: trio.abc.Stream, pace: HostTurns) -> None:
        self.transport_stream = transport_stream
        self.line: trio.SSLStream | None = None  # the TLS stream over it, until its handshake is over
        self._pace = pace
        self._host = get_host(transport_stream)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive bytes; during the TLS handshake only on this address's turn."""
        data = await self.transport_stream.receive_some(max_bytes)
        if self.line is not None:
            if _is_shaken(self.line):
                self.line = None
            else:
                await self._pace.wait(self._host)
        return data

    async def send_all(self, data: bytes | memoryview) -> None:
        await self.transport_stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._say_last()
        self.line = None
        await self.transport_stream.aclose()

    def _say_last(self) -> None:
        """Send the alert with which TLS ended the handshake, such as that it speaks 1.3 alone; trio never sends it."""
        if self.line is None or not isinstance(self.transport_stream, trio.SocketStream):
            return
        alert = bytes(self.line._outgoing.read())  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
        with suppress(OSError):  # it fits into an empty buffer, or the other side is gone
            os.write(self.transport_stream.socket.fileno(), alert)


def get_host(stream: trio.abc.Stream) -> str:
    """Return the remote IP address (for IPv6 its network), or an empty text if there is none."""
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        address = ipaddress.ip_address(str(stream.socket.getpeername()[0]).partition("%")[0])
    except (OSError, ValueError):  # already closed, or not an internet address
        return ""
    if address.version == 6 and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.version == 6:
        return str(ipaddress.ip_network((address, IPV6_PREFIX_BITS), strict=False))
    return str(address)


def _is_shaken(line: trio.SSLStream) -> bool:
    try:
        line.getpeercert()
    except trio.NeedHandshakeError:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # stubs lag
        return False
    return True
