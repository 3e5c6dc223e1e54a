"""One question to one endpoint: sent over a transport, its answer read as JSON by ourselves.

solders has readers of answers too; they panic on errors without data, which no `except Exception` catches.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec
import trio

from psyche.backends.solana.cluster import Endpoint
from psyche.errors import BackendError, PsycheError

MAX_TEXT: Final = 300  # characters of an endpoint's own words
TIMEOUT_S: Final = 2.5  # another endpoint can still answer within 5 s
SLOW_TIMEOUT_S: Final = 60.0
THREAD_BYTES: Final = 1 << 20  # longer answers are read in a thread
_SLOW: Final = frozenset({"getProgramAccounts", "getMultipleAccounts"})
_BEHIND: Final = frozenset({-32004, -32007, -32014, -32016})  # the endpoint has not got that far
_FINAL: Final = frozenset({-32700, -32600, -32601, -32602, -32003, -32013, -32015})
_PREFLIGHT: Final = -32002


class RequestFailed(PsycheError):
    """An endpoint gave no answer, or none that can be used; another one may, or the same one later.

    `is_passing`: it is worth asking the same endpoint again before the next one. `wait_s`: how long it asks to be left
    alone; 0 if it says nothing. `is_closed`: the machine is there, and nothing listens at its port.
    """

    def __init__(self, text: str, *, is_passing: bool = True, wait_s: float = 0.0, is_closed: bool = False) -> None:
        super().__init__(text)
        self.is_closed = is_closed
        self.is_passing = is_passing
        self.wait_s = wait_s


class RpcRefused(BackendError):
    """An endpoint refuses a request as every other one would; `code` is JSON-RPC's, `data` what it says beside."""

    def __init__(self, endpoint: str, method: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{endpoint} refuses {method}: {message[:MAX_TEXT]} ({code})")
        self.code = code
        self.data = data


class Socket(Protocol):
    """A connection for subscriptions."""

    async def send(self, message: dict[str, Any]) -> None: ...

    async def receive(self) -> dict[str, Any]:
        """Wait for the next message; how long is the transport's business.

        Raises:
            RequestFailed: it is no object of JSON.
        """
        ...


class Transport(Protocol):
    """The way to endpoints: `rpc.http.HttpTransport`, or the simulator's."""

    async def post(self, endpoint: Endpoint, question: bytes) -> tuple[int, bytes]:
        """Ask an endpoint; return the status of HTTP and the body of its answer, however long that takes.

        Raises:
            RequestFailed: there is no answer, or none that may be read.
        """
        ...

    async def talk(self, endpoint: Endpoint, use: Callable[[Socket], Awaitable[None]]) -> str:
        """Open a socket and use it; return why it ended."""
        ...


async def ask_endpoint(transport: Transport, endpoint: Endpoint, method: str, params: tuple[Any, ...]) -> Any:
    """Ask an endpoint once, and return the result.

    Raises:
        RequestFailed: there is no usable answer.
        RpcRefused: the request is wrong, or the transaction in it fails.
    """
    question = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    limit_s = SLOW_TIMEOUT_S if method in _SLOW else TIMEOUT_S
    try:
        with trio.fail_after(limit_s):
            status, raw = await transport.post(endpoint, question)
    except trio.TooSlowError:
        raise RequestFailed(f"no answer within {limit_s:g} s", is_passing=False) from None
    reply = await _read(raw)
    return _open(endpoint, method, status, reply)


async def _read(raw: bytes) -> Any:
    try:
        if len(raw) > THREAD_BYTES:
            return await trio.to_thread.run_sync(msgspec.json.decode, raw)
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _open(endpoint: Endpoint, method: str, status: int, reply: Any) -> Any:
    if isinstance(reply, dict):
        match reply.get("error"):
            case {"code": int(code), "message": str(message), **rest}:
                raise sort_error(endpoint, method, code, message, rest.get("data"))
            case None if "result" in reply:
                return reply["result"]
    # 401, 403, 404 and the like: the address is wrong, and so it stays
    raise RequestFailed(f"HTTP {status}, and no answer of Solana's RPC", is_passing=status == 200)


def sort_error(endpoint: Endpoint, method: str, code: int, message: str, data: Any) -> RequestFailed | RpcRefused:
    """The error for JSON-RPC's: by its number, never by its text.

    Providers have numbers of their own, so one that is not known counts as the endpoint's trouble.
    """
    has_reason = isinstance(data, dict) and data.get("err") is not None
    if code in _FINAL or (code == _PREFLIGHT and has_reason):
        return RpcRefused(endpoint.name, method, code, message, data)
    return RequestFailed(f"{message[:MAX_TEXT]} ({code})", is_passing=code not in _BEHIND)
