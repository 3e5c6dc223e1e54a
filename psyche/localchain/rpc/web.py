"""The network: JSON-RPC over HTTP on one port, subscriptions over WebSocket on another. ASGI, on hypercorn and trio."""

import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState
from hypercorn.utils import wrap_app

from psyche.localchain.rpc.calls import MAX_REQUEST_BYTES, Method, answer_body
from psyche.localchain.rpc.hub import SubscriptionHub
from psyche.wire.nursery import open_plain_nursery

MAX_CONNECTIONS: Final = 512
FIRST_REQUEST_S: Final = 10.0  # for the head of a connection's first request
REQUEST_S: Final = 20.0  # for the body of a request
KEEP_ALIVE_S: Final = 75.0  # between requests
MAX_QUEUED: Final = 1_024  # notifications that a subscriber has not taken yet
MAX_QUEUED_BYTES: Final = 32 << 20
SEND_TIMEOUT_S: Final = 20.0
TRY_AGAIN_LATER: Final = 1013

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_CORS: Final = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
]
logger = logging.getLogger(__name__)


# --- HTTP ---------------------------------------------------------------------------------------------------


def make_http_app(methods: Mapping[str, Method]) -> App:

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            status, body = await _answer_http(methods, scope, receive)
            await _reply(send, status, body)
        elif scope["type"] == "websocket":
            await _refuse_socket(receive, send)

    return app


async def _answer_http(methods: Mapping[str, Method], scope: Message, receive: Receive) -> tuple[int, bytes]:
    if scope["method"] == "OPTIONS":
        return 204, b""
    if scope["method"] == "GET" and scope["path"] == "/health":
        return 200, b"ok"
    if scope["method"] != "POST":
        return 405, b"calls are POST requests; GET answers at /health alone\n"
    with trio.move_on_after(REQUEST_S):
        return await _answer_post(methods, receive)
    return 408, b"the request took too long\n"


async def _answer_post(methods: Mapping[str, Method], receive: Receive) -> tuple[int, bytes]:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return 400, b"the request was cut off\n"
        body += message.get("body", b"")
        if len(body) > MAX_REQUEST_BYTES:
            return 413, b"a request has at most %d bytes\n" % MAX_REQUEST_BYTES
        if not message.get("more_body"):
            return 200, answer_body(methods, bytes(body)) or b""


async def _reply(send: Send, status: int, body: bytes) -> None:
    kind = b"application/json" if body[:1] in (b"{", b"[") else b"text/plain"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *_CORS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse_socket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close"})


# --- WebSocket ----------------------------------------------------------------------------------------------


class Subscriber:
    """What one connection is to be sent. A queue that is full ends the connection instead of growing."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._sender, self._receiver = trio.open_memory_channel[bytes](MAX_QUEUED)
        self._queued_bytes = 0
        self.is_overrun = False

    def put(self, text: bytes) -> None:
        self._queued_bytes += len(text)
        try:
            if self._queued_bytes > MAX_QUEUED_BYTES + len(text):
                raise trio.WouldBlock
            self._sender.send_nowait(text)
        except trio.WouldBlock:
            self.is_overrun = True
            self._scope.cancel()

    async def send_all(self, send: Send) -> None:
        async for text in self._receiver:
            await send({"type": "websocket.send", "text": text.decode()})
            self._queued_bytes -= len(text)


def make_socket_app(hub: SubscriptionHub) -> App:

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _reply(send, 405, b"this port speaks WebSocket, for subscriptions; calls go to the port before it\n")
        elif scope["type"] == "websocket":
            await _serve_socket(hub, receive, send)

    return app


async def _serve_socket(hub: SubscriptionHub, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})
    async with open_plain_nursery() as nursery:
        subscriber = Subscriber(nursery.cancel_scope)
        nursery.start_soon(subscriber.send_all, send)
        try:
            await _take_calls(hub, subscriber, receive)
        finally:
            hub.forget(subscriber)
        nursery.cancel_scope.cancel()
    if subscriber.is_overrun:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "too many notifications wait"})


async def _take_calls(hub: SubscriptionHub, subscriber: Subscriber, receive: Receive) -> None:
    methods = hub.make_methods(subscriber)
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            return
        reply = answer_body(methods, message.get("text") or message.get("bytes") or b"")
        if reply is not None:
            subscriber.put(reply)
        hub.settle()


# --- sockets ------------------------------------------------------------------------------------------------


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


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Bind a port and the one after it; `port` 0 takes any two.

    Raises:
        OSError: they are in use, or not this machine's; it names the port.
    """
    for _ in range(1 if port else 100):
        first = _bind(host, port)
        try:
            return first, _bind(host, first.getsockname()[1] + 1)
        except (OSError, OverflowError):
            first.close()
            if port:
                raise
    raise OSError(f"{host} has no two free ports that follow each other")


def _bind(host: str, port: int) -> socket.socket:
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
            except Exception:  # one connection must not end the chain
                logger.exception("a connection failed")
            finally:
                streams.discard(guarded)

    async with open_plain_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, [listener])
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
        websocket_max_message_size=MAX_REQUEST_BYTES,
        websocket_ping_interval=20.0,
    )
