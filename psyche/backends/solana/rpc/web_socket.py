"""One WebSocket to an endpoint, behind which the library can change."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import httpcore2
import httpx2
import msgspec
import trio
from httpx2.websockets import AsyncWebSocketSession, HTTPXWSException
from wsproto.utilities import ProtocolError

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.rpc.transport import MAX_TEXT, RequestFailed

CONNECT_S: Final = 5.0
PING_S: Final = 2.0  # a peer that has stopped is noticed after this and the next
PONG_S: Final = 2.0
QUEUE: Final = 8  # messages that wait to be read
MAX_MESSAGE_BYTES: Final = 1 << 20  # a run's account has 220,256 bytes in base64
_LOST: Final = (
    RequestFailed, HTTPXWSException, ProtocolError, OSError, httpx2.HTTPError, httpx2.InvalidURL,
    httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException,
    anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream,
)  # fmt: skip


class Socket:
    """An open socket that speaks JSON."""

    def __init__(self, session: AsyncWebSocketSession) -> None:
        self._session = session

    async def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        await self._session.send_text(msgspec.json.encode(message).decode())

    async def receive(self) -> dict[str, Any]:
        """Wait for the next message; pings bound the wait.

        Raises:
            RequestFailed: it is no object of JSON.
        """
        text = await self._session.receive_text()
        try:
            message = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise RequestFailed("a message over WebSocket that is no object of JSON")
        return message


async def talk(http: httpx2.AsyncClient, endpoint: Endpoint, use: Callable[[Socket], Awaitable[None]]) -> str:
    """Open a socket and use it; return why it ended."""
    reasons: list[BaseException] = []
    try:
        async with http.websocket(
            endpoint.ws, max_message_size_bytes=MAX_MESSAGE_BYTES, queue_size=QUEUE, timeout=CONNECT_S,
            keepalive_ping_interval_seconds=PING_S, keepalive_ping_timeout_seconds=PONG_S,
        ) as session:  # fmt: skip
            await use(Socket(session))
    except* _LOST as group:
        reasons += _flatten(group)
    except* trio.TooSlowError:
        reasons.append(RequestFailed("no answer in time"))
    return _describe(reasons[0]) if reasons else "closed"


def _flatten(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for part in error.exceptions for leaf in _flatten(part)]


def _describe(error: BaseException) -> str:
    name = "" if isinstance(error, RequestFailed) else type(error).__name__
    return ": ".join(part for part in (name, str(error)[:MAX_TEXT]) if part)
