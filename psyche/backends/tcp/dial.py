"""Dialing a coordinator server: connect by TLS, prove both keys, agree on version and run."""

import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from psyche import __version__
from psyche.errors import BackendError, HandshakeError, WireError
from psyche.wire import backend as wire
from psyche.wire.crypto import Identity
from psyche.wire.data import PURPOSE as DATA_PURPOSE
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import client_handshake, name_service
from psyche.wire.line.tls import Channel, TlsConnection, open_tls

CONNECT_TIMEOUT_S: Final = 10.0
REPLY_TIMEOUT_S: Final = 10.0
PROGRAM: Final = f"psyche {__version__}"
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.%\w]+\]|[^\s/@?#\[\]]+")  # an IPv6 address in brackets, or a name
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """The address of a coordinator server."""

    host: str
    port: int
    run_id: str = ""  # that is expected; empty accepts any
    key: bytes | None = None  # the server's public key (32 bytes); None trusts the first server that answers


def parse_server(text: str, run_id: str = "", key: bytes | None = None) -> ServerAddress:
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        hint = "; leave out what is before // and after the port" if "/" in text else ""
        raise BackendError(f"--server-addr {text!r}: must be HOST:PORT, such as 192.0.2.7:19400{hint}")
    return ServerAddress(host=host.strip("[]"), port=int(port), run_id=run_id, key=key)


Connect = Callable[[str, int], Awaitable[TlsConnection]]


class Dialed(NamedTuple):
    """A connection that has completed hello, the key that the server has proven, and its greeting."""

    frames: FrameStream
    server: bytes
    greeting: wire.Greeting


async def dial(address: ServerAddress, identity: Identity, connect: Connect = open_tls) -> Dialed:
    """Connect and complete hello; the caller closes the connection.

    `connect` connects to a host and a port, or raises OSError or WireError.
    """
    connection = await _connect(address, connect)
    frames = FrameStream(connection.stream, wire.MAX_SERVER_FRAME_BYTES, max_send_bytes=wire.MAX_REQUEST_BYTES)
    channel = connection.channel
    try:
        await _shake_hands(frames, identity, channel, address)
        hello = wire.HelloRequest(wire.VERSION, address.run_id, PROGRAM)
        greeting = (await ask(frames, wire.Request(0, hello))).body
        if not isinstance(greeting, wire.Greeting):
            raise WireError("the reply to hello is not a greeting")
    except BaseException:
        await frames.aclose()  # forcefully: does not wait, even when cancelled
        raise
    return Dialed(frames, channel.server, greeting)


async def _shake_hands(frames: FrameStream, identity: Identity, channel: Channel, address: ServerAddress) -> None:
    try:
        await client_handshake(frames, identity, wire.PURPOSE, channel, address.key, CONNECT_TIMEOUT_S)
    except HandshakeError as error:
        if name_service(DATA_PURPOSE) not in str(error):
            raise
        raise HandshakeError(
            f"server {address.host}:{address.port}: this is the port of the run's data; that of the server itself is "
            f"the one that `psyche server run` prints, by default one below: --server-addr {address.host}:"
            f"{address.port - 1}"
        ) from error


async def _connect(address: ServerAddress, connect: Connect) -> TlsConnection:
    where = f"server {address.host}:{address.port}"
    try:
        with trio.fail_after(CONNECT_TIMEOUT_S):
            return await connect(address.host, address.port)
    except trio.TooSlowError as error:
        raise BackendError(f"{where}: no connection within {CONNECT_TIMEOUT_S:g} s") from error
    except OSError as error:
        raise BackendError(f"{where}: cannot be reached ({get_reason(error)})") from error
    except WireError as error:
        raise BackendError(f"{where}: {error}") from error


def get_reason(error: OSError) -> str:
    """Describe why connecting failed: the errors of all addresses of the host, without repetitions."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else [error.__cause__]
    reasons = [
        os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror  # names that are not found: < 0
        for cause in (error, *causes)
        if isinstance(cause, OSError) and cause.strerror
    ]
    return ", ".join(dict.fromkeys(reasons)) or str(error)


async def ask(frames: FrameStream, request: wire.Request) -> wire.Reply:
    """Send one request on a connection that has no other in flight, and wait for its reply."""
    await frames.send(wire.encode_message(request), REPLY_TIMEOUT_S)
    with trio.move_on_after(REPLY_TIMEOUT_S):
        while True:
            message = wire.decode_server_message(await frames.receive(REPLY_TIMEOUT_S))
            if isinstance(message, wire.Goodbye):
                raise wire.error_from_code(message.code, message.message)
            if isinstance(message, wire.Reply) and message.id == request.id:
                break
        if message.code and not message.on_record:
            raise wire.error_from_code(message.code, message.message, message.rule)
        return message
    raise BackendError(f"server: no reply within {REPLY_TIMEOUT_S:g} s")
