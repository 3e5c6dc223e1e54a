"""Authenticates both ends of a connection: the server by TLS (`wire/line/tls.py`), the client by a challenge (K6).

    server -> client   Challenge  protocol version, 32 random bytes
    client -> server   Answer     client key, purpose, signature
    server -> client   Welcome    an empty text, or the reason for a refusal

The client signs `psyche/handshake/2` | server key | binding | challenge | purpose. The binding is the BLAKE3 hash of
the certificate that the server presented in TLS: a signature made for one server, connection or service is useless at
any other. The server signs nothing here, because TLS has proven its key before the first of these bytes.
"""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TypeVar

import msgspec
import trio

from psyche.errors import HandshakeError, WireError
from psyche.wire.crypto import Identity, verify
from psyche.wire.line.framing import FrameStream, FrameTimeout
from psyche.wire.line.tls import Channel
from psyche.wire.msgpack import decode_msgpack

PROTOCOL_VERSION: Final = 2
CHALLENGE_BYTES: Final = 32
KEY_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 1_024  # of a frame before Welcome; the answer has about 120
MAX_PURPOSE_BYTES: Final = 64
_TAG: Final = b"psyche/handshake/2"
_T = TypeVar("_T", bound=msgspec.Struct)  # Python 3.11 has no type parameters


class WrongServer(HandshakeError):
    """Not the expected server answers: another one, or a man in the middle."""


class HandshakeChallenge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    challenge: bytes


class HandshakeResponse(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    client: bytes
    purpose: str
    signature: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The client is accepted, or `refused` is the reason why the server closes the connection."""

    refused: str = ""


def signed_bytes(channel: Channel, challenge: bytes, purpose: str) -> bytes:
    return _TAG + channel.server + channel.binding + challenge + purpose.encode()


def name_service(purpose: str) -> str:
    return f"the {purpose} service"


async def server_handshake(frames: FrameStream, channel: Channel, purpose: str, timeout_s: float) -> bytes:
    """Authenticate the client that connected; return its public key (32 bytes).

    During the handshake frames are limited to `MAX_HANDSHAKE_BYTES`, whatever `frames` allows later. If the
    stream speaks TLS, `timeout_s` covers the TLS handshake as well.

    Raises:
        WireError: the client's message is malformed.
        HandshakeError: the client's signature or purpose is wrong; the reason was sent to it.
        FrameTimeout: the handshake took longer than `timeout_s`.
        ConnectionLost: the client closed the connection, or it broke.
    """
    with _allow_small_frames(frames), trio.move_on_after(timeout_s):
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        await _send(frames, HandshakeChallenge(PROTOCOL_VERSION, challenge), timeout_s)
        response = _decode(await frames.receive(timeout_s), HandshakeResponse)
        reason = _get_refusal(response, channel, challenge, purpose)
        await _send(frames, Welcome(reason), timeout_s)
        if reason:
            raise HandshakeError(f"handshake with {response.client.hex()[:16]}: {reason}")
        return response.client
    raise FrameTimeout(f"handshake: not finished within {timeout_s:g} s")


async def client_handshake(
    frames: FrameStream,
    identity: Identity,
    purpose: str,
    channel: Channel,
    expected_server: bytes | None,
    timeout_s: float,
) -> None:
    """Check the server's key before anything is sent, then prove the client's own key.

    `expected_server` is the server's public key, or None to accept any; `timeout_s` limits the whole handshake.

    Raises:
        WireError: the server's message is malformed.
        WrongServer: another server answers.
        HandshakeError: the server speaks another protocol version, or refuses.
        FrameTimeout: the handshake took longer than `timeout_s`.
        ConnectionLost: the server closed the connection, or it broke.
    """
    if expected_server is not None and channel.server != expected_server:
        raise WrongServer(
            f"handshake: the server's key is {channel.server.hex()}, expected {expected_server.hex()}; "
            "another server answers at this address"
        )
    with _allow_small_frames(frames), trio.move_on_after(timeout_s):
        greeting = _decode(await frames.receive(timeout_s), HandshakeChallenge)
        _check_greeting(greeting)
        signature = identity.sign(signed_bytes(channel, greeting.challenge, purpose))
        await _send(frames, HandshakeResponse(identity.public, purpose, signature), timeout_s)
        welcome = _decode(await frames.receive(timeout_s), Welcome)
        if welcome.refused:
            raise HandshakeError(f"handshake: the server refuses: {welcome.refused[:200]}")
        return
    raise FrameTimeout(f"handshake: not finished within {timeout_s:g} s")


@contextmanager
def _allow_small_frames(frames: FrameStream) -> Generator[None]:
    former, frames.max_frame_bytes = frames.max_frame_bytes, MAX_HANDSHAKE_BYTES
    try:
        yield
    finally:
        frames.max_frame_bytes = former


def _get_refusal(response: HandshakeResponse, channel: Channel, challenge: bytes, purpose: str) -> str:
    if len(response.client) != KEY_BYTES:
        return f"a key must have {KEY_BYTES} bytes"
    if response.purpose != purpose:
        return f"this is {name_service(purpose)}, not {response.purpose[:MAX_PURPOSE_BYTES]!r}"
    if not verify(response.client, signed_bytes(channel, challenge, purpose), response.signature):
        return "the signature is not that of the key"
    return ""


def _check_greeting(greeting: HandshakeChallenge) -> None:
    if greeting.version != PROTOCOL_VERSION:
        raise HandshakeError(f"handshake: the server speaks version {greeting.version}, this is {PROTOCOL_VERSION}")
    if len(greeting.challenge) != CHALLENGE_BYTES:
        raise WireError(f"handshake: a challenge must have {CHALLENGE_BYTES} bytes")


async def _send(frames: FrameStream, message: msgspec.Struct, timeout_s: float) -> None:
    await frames.send(msgspec.msgpack.encode(message), timeout_s)


def _decode(raw: bytes, kind: type[_T]) -> _T:
    return decode_msgpack(msgspec.msgpack.Decoder(kind), raw, f"handshake: {kind.__name__} cannot be read")
