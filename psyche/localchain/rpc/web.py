"""The network: JSON-RPC over HTTP on one port, subscriptions over WebSocket on another. ASGI, on hypercorn and trio."""

from collections.abc import Mapping
from typing import Final

import trio

from psyche.localchain.rpc.calls import MAX_REQUEST_BYTES, Method, answer_body
from psyche.localchain.rpc.hub import SubscriptionHub
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.web import App, Message, Receive, Send

REQUEST_S: Final = 20.0  # for the body of a request
MAX_QUEUED: Final = 1_024  # notifications that a subscriber has not taken yet
MAX_QUEUED_BYTES: Final = 32 << 20
TRY_AGAIN_LATER: Final = 1013

_CORS: Final = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
]


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
