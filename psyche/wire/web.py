"""Serves an ASGI application over HTTP/1.1 and WebSocket on hypercorn and trio, to strangers: all waits are bounded."""

import ipaddress
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import wrap_app  # pyright: ignore[reportUnknownVariableType]

from psyche.wire.nursery import open_plain_nursery

MAX_CONNECTIONS: Final = 512
FIRST_REQUEST_S: Final = 10.0  # for the head of a connection's first request
KEEP_ALIVE_S: Final = 75.0  # between requests
SEND_TIMEOUT_S: Final = 20.0
MAX_MESSAGE_BYTES: Final = 50 << 10  # of a WebSocket

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(\[[\da-fA-F:.]+\]|[^:\[\]]+)(?::\d{1,5})?")

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A request gets this status and these words; `field` is what of the request they are about."""

    def __init__(self, status: int, words: str, field: str | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.field = field


def format_host(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def get_own_names(host: str) -> frozenset[str]:
    """The names that a server bound to `host` is called by, besides its addresses."""
    other = () if host in LOOPBACK else (socket.gethostname().lower(),)
    return LOOPBACK | {host.lower().strip("[]"), *other}


def check_caller(headers: Mapping[str, str], names: Collection[str], what: str, option: str) -> None:
    """Judge what strangers' pages in a browser cannot choose: the name that they call, and where they come from.

    Raises:
        Refused: `what` has other names, which `option` gives, or the caller is a page of another site.
    """
    host = headers.get("host", "").lower()
    match = _HOST.fullmatch(host)
    name = "" if match is None else match[1].strip("[]")
    if name not in names and not _is_address(name):
        raise Refused(
            421, f"Host: {what} does not answer to that name. Call it by its IP address, or start it with "
            f"{option} and the name", "Host",
        )  # fmt: skip
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
        raise Refused(403, "Origin: pages of other sites may not read this one", "Origin")


def _is_address(name: str) -> bool:
    """A name that no stranger's name server can answer for."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class GuardedStream:
    """A connection whose sends end after a while. The server waits for each of them, whatever is cancelled."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = stream.socket
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        try:
            with trio.fail_after(SEND_TIMEOUT_S):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            raise trio.BrokenResourceError from None

    async def receive_some(self, most: int) -> bytes | bytearray:
        return await self._stream.receive_some(most)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        """Close the connection at once, also under a send that nobody takes."""
        self.socket.close()


class ServedConnection(TCPServer):
    """A connection whose place is free as soon as its other end is gone, and that does not stand without a request."""

    _idle_s = FIRST_REQUEST_S

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()  # else the end is noticed only when the wait for a request is over

    async def _idle_timeout(self) -> None:
        idle_s, self._idle_s = self._idle_s, KEEP_ALIVE_S
        await trio.sleep(idle_s)
        await super()._idle_timeout()


def bind(host: str, port: int) -> socket.socket:
    """Bind a port; 0 takes any.

    Raises:
        OSError: it is in use, or not this machine's; it names the port.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        error.filename = f"{host}:{port}"
        raise
    return bound


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Bind a port and the one after it; `port` 0 takes any two.

    Raises:
        OSError: they are in use, or not this machine's; it names the port.
    """
    for _ in range(1 if port else 100):
        first = bind(host, port)
        try:
            return first, bind(host, first.getsockname()[1] + 1)
        except (OSError, OverflowError):
            first.close()
            if port:
                raise
    raise OSError(f"{host} has no two free ports that follow each other")


@asynccontextmanager
async def serve_app(app: App, listening: socket.socket) -> AsyncGenerator[None]:
    """Serve an application on a listening socket while the block runs."""
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    config, free = make_config(), trio.CapacityLimiter(MAX_CONNECTIONS)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")  # pyright: ignore[reportArgumentType]
    streams: set[GuardedStream] = set()

    async def handle(stream: trio.SocketStream) -> None:
        if not free.available_tokens:
            await trio.aclose_forcefully(stream)
            return
        async with free:
            guarded: Any = GuardedStream(stream)
            streams.add(guarded)
            try:
                await ServedConnection(wrapped, config, WorkerContext(None), ConnectionState(LifespanState()), guarded)
            except Exception:  # one connection must not end the server
                logger.exception("a connection failed")
            finally:
                streams.discard(guarded)

    async with open_plain_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])  # pyright: ignore[reportUnknownMemberType]
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            for guarded in streams:
                guarded.abort()


def make_config() -> Config:
    return Config.from_mapping(
        alpn_protocols=["http/1.1"],
        errorlog=None,
        include_date_header=False,
        include_server_header=False,
        keep_alive_max_requests=1 << 40,
        keep_alive_timeout=0.0,  # ServedConnection waits
        websocket_max_message_size=MAX_MESSAGE_BYTES,
        websocket_ping_interval=20.0,
    )
