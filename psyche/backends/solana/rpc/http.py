"""Endpoints over the network: HTTP with bounded answers, and WebSockets; the library can change behind it."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpcore2
import httpx2
import msgspec
import trio

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.rpc.transport import MAX_TEXT, RequestFailed, Socket

if TYPE_CHECKING:
    from httpx2.websockets import AsyncWebSocketSession

CONNECT_S: Final = 5.0
PING_S: Final = 2.0  # a peer that has stopped is noticed after this and the next
PONG_S: Final = 2.0
MAX_REPLY_BYTES: Final = 32 << 20  # an account of 10 MiB is the largest that a chain has
QUEUE: Final = 8  # messages that wait to be read
MAX_MESSAGE_BYTES: Final = 1 << 20  # a run's account has 220,256 bytes in base64
_BUSY: Final = 429
_SERVER_ERROR: Final = 500


class WebSocket:
    """An open socket; pings bound the wait for messages."""

    def __init__(self, session: "AsyncWebSocketSession") -> None:
        self._session = session

    async def send(self, message: dict[str, Any]) -> None:
        await self._session.send_text(msgspec.json.encode(message).decode())

    async def receive(self) -> dict[str, Any]:
        text = await self._session.receive_text()
        try:
            message = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise RequestFailed("a message over WebSocket that is no object of JSON")
        return message


class HttpTransport:
    """Endpoints over the network. A WebSocket cannot begin on a connection of HTTP/2, so `sockets` has others."""

    def __init__(self, http: httpx2.AsyncClient, sockets: httpx2.AsyncClient) -> None:
        self._http = http
        self._sockets = sockets

    async def post(self, endpoint: Endpoint, question: bytes) -> tuple[int, bytes]:
        try:
            return await self._post(endpoint.http, question)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            is_closed = _is_refused(error)
            raise RequestFailed("connection refused" if is_closed else _describe(error), is_closed=is_closed) from error

    async def _post(self, url: str, question: bytes) -> tuple[int, bytes]:
        # Unpacked answers only: otherwise a few bytes could become many before they are counted.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with self._http.stream("POST", url, content=question, headers=headers) as response:
            if response.status_code == _BUSY or response.status_code >= _SERVER_ERROR:
                raise RequestFailed(f"HTTP {response.status_code}", wait_s=_read_wait(response))
            raw = bytearray()
            async with aclosing(response.aiter_raw()) as parts:
                async for part in parts:
                    raw += part
                    if len(raw) > MAX_REPLY_BYTES:
                        raise RequestFailed(f"an answer of more than {MAX_REPLY_BYTES} bytes", is_passing=False)
            return response.status_code, bytes(raw)

    async def talk(self, endpoint: Endpoint, use: Callable[[Socket], Awaitable[None]]) -> str:
        reasons: list[BaseException] = []
        try:
            async with self._sockets.websocket(
                endpoint.ws, max_message_size_bytes=MAX_MESSAGE_BYTES, queue_size=QUEUE, timeout=CONNECT_S,
                keepalive_ping_interval_seconds=PING_S, keepalive_ping_timeout_seconds=PONG_S,
            ) as session:  # fmt: skip
                await use(WebSocket(session))
        except* _get_failures() as group:
            reasons += _flatten(group)
        except* trio.TooSlowError:
            reasons.append(RequestFailed("no answer in time"))
        return _describe(reasons[0]) if reasons else "closed"


def _get_failures() -> tuple[type[BaseException], ...]:
    """How a WebSocket ends. Imported here: commands that only ask do not load the packages of WebSockets."""
    from httpx2.websockets import HTTPXWSException
    from wsproto.utilities import ProtocolError

    return (
        RequestFailed, HTTPXWSException, ProtocolError, OSError, httpx2.HTTPError, httpx2.InvalidURL,
        httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException,
        anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream,
    )  # fmt: skip


def _read_wait(response: httpx2.Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _is_refused(error: BaseException | None) -> bool:
    """Whether a connection was refused; the reason lies some causes deep."""
    match error:
        case None:
            return False
        case ConnectionRefusedError():
            return True
        case BaseExceptionGroup(exceptions=inner):
            return any(map(_is_refused, inner))
        case _:
            return _is_refused(error.__cause__ or error.__context__)


def _flatten(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _flatten(part)]


def _describe(error: BaseException) -> str:
    name = "" if isinstance(error, RequestFailed) else type(error).__name__
    return ": ".join(part for part in (name, str(error)[:MAX_TEXT]) if part)
