"""Who is on the other end of a connection: a mutual challenge signed with both sides' Ed25519 keys.

    server -> client   Challenge  protocol version, server key, 32 random bytes
    client -> server   Answer     client key, 32 random bytes, purpose, signature
    server -> client   Welcome    signature, or why not

The client signs `psyche/handshake/1` | server key | challenge | purpose; naming the server and the
purpose makes a signature useless at any other server or for any other service. The server signs
`psyche/handshake-server/1` | client key | client's challenge | purpose. The stream is authenticated,
not encrypted: a run over an untrusted network belongs behind a tunnel.
"""

import secrets
from typing import Final, TypeVar

import msgspec
import trio

from psyche.errors import BackendError, WireError
from psyche.wire.crypto import Identity, verify
from psyche.wire.framing import FrameStream, FrameTimeout

PROTOCOL_VERSION: Final = 1
CHALLENGE_BYTES: Final = 32
KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
MAX_HANDSHAKE_BYTES: Final = 1_024  # a stranger's frame: the answer has about 200
MAX_PURPOSE_BYTES: Final = 64
_CLIENT_TAG: Final = b"psyche/handshake/1"
_SERVER_TAG: Final = b"psyche/handshake-server/1"
_T = TypeVar("_T", bound=msgspec.Struct)  # Python 3.11 has no type parameters


class HandshakeError(BackendError):
    """The other side is not who it should be, or speaks another protocol; a retry does not help."""


class Challenge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the server says first."""

    version: int
    server: bytes
    challenge: bytes


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the client answers."""

    client: bytes
    challenge: bytes
    purpose: str
    signature: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The server's own proof, or `refused`, the reason why it hangs up."""

    signature: bytes
    refused: str = ""


def client_signed_bytes(server: bytes, challenge: bytes, purpose: str) -> bytes:
    """What the client's signature covers."""
    return _CLIENT_TAG + server + challenge + purpose.encode()


def server_signed_bytes(client: bytes, challenge: bytes, purpose: str) -> bytes:
    """What the server's signature covers."""
    return _SERVER_TAG + client + challenge + purpose.encode()


async def server_handshake(frames: FrameStream, identity: Identity, purpose: str, timeout_s: float) -> bytes:
    """Find out who connected; returns the client's public key (32 bytes).

    During the handshake frames are limited to `MAX_HANDSHAKE_BYTES`, whatever `frames` allows later.

    Raises:
        WireError: the client's bytes break the format.
        HandshakeError: its signature or purpose is not right; it has been told why.
        FrameTimeout: it did not finish within `timeout_s`.
        ConnectionLost: it went away.
    """
    with _SmallFrames(frames), trio.move_on_after(timeout_s):
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        await _send(frames, Challenge(PROTOCOL_VERSION, identity.public, challenge), timeout_s)
        answer = _decode(await frames.receive(timeout_s), Answer)
        reason = _get_refusal(answer, identity.public, challenge, purpose)
        if reason:
            await _send(frames, Welcome(b"", reason), timeout_s)
            raise HandshakeError(f"handshake with {answer.client.hex()[:16]}: {reason}")
        proof = identity.sign(server_signed_bytes(answer.client, answer.challenge, purpose))
        await _send(frames, Welcome(proof), timeout_s)
        return answer.client
    raise FrameTimeout(f"handshake: not finished within {timeout_s:g} s")


async def client_handshake(
    frames: FrameStream, identity: Identity, purpose: str, expected_server: bytes | None, timeout_s: float
) -> bytes:
    """Prove who connects and check who answers; returns the server's public key (32 bytes).

    Args:
        frames: the connection.
        identity: the key to prove.
        purpose: the service asked for, the same on both sides.
        expected_server: the server's public key, or None to accept any that proves its own.
        timeout_s: bound of the whole handshake.

    Raises:
        WireError: the server's bytes break the format.
        HandshakeError: another protocol version, another server, a wrong proof, or a refusal.
        FrameTimeout: not finished within `timeout_s`.
        ConnectionLost: the server went away.
    """
    with _SmallFrames(frames), trio.move_on_after(timeout_s):
        hello = _decode(await frames.receive(timeout_s), Challenge)
        _check_hello(hello, expected_server)
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        signature = identity.sign(client_signed_bytes(hello.server, hello.challenge, purpose))
        await _send(frames, Answer(identity.public, challenge, purpose, signature), timeout_s)
        welcome = _decode(await frames.receive(timeout_s), Welcome)
        if welcome.refused:
            raise HandshakeError(f"handshake: the server refuses: {welcome.refused[:200]}")
        if not verify(hello.server, server_signed_bytes(identity.public, challenge, purpose), welcome.signature):
            raise HandshakeError("handshake: the server cannot prove that it holds its key")
        return hello.server
    raise FrameTimeout(f"handshake: not finished within {timeout_s:g} s")


class _SmallFrames:
    """Strangers get small frames; the former limit comes back when the handshake is over."""

    def __init__(self, frames: FrameStream) -> None:
        self._frames = frames
        self._former = frames.max_frame_bytes

    def __enter__(self) -> None:
        self._frames.max_frame_bytes = MAX_HANDSHAKE_BYTES

    def __exit__(self, *_: object) -> None:
        self._frames.max_frame_bytes = self._former


def _get_refusal(answer: Answer, server: bytes, challenge: bytes, purpose: str) -> str:
    if len(answer.client) != KEY_BYTES or len(answer.challenge) != CHALLENGE_BYTES:
        return f"key and challenge must have {KEY_BYTES} bytes"
    if answer.purpose != purpose:
        return f"this is the {purpose} service, not {answer.purpose[:MAX_PURPOSE_BYTES]!r}"
    if not verify(answer.client, client_signed_bytes(server, challenge, purpose), answer.signature):
        return "the signature is not that of the key"
    return ""


def _check_hello(hello: Challenge, expected_server: bytes | None) -> None:
    if hello.version != PROTOCOL_VERSION:
        raise HandshakeError(f"handshake: the server speaks version {hello.version}, this is {PROTOCOL_VERSION}")
    if len(hello.server) != KEY_BYTES or len(hello.challenge) != CHALLENGE_BYTES:
        raise WireError(f"handshake: key and challenge must have {KEY_BYTES} bytes")
    if expected_server is not None and hello.server != expected_server:
        raise HandshakeError(
            f"handshake: the server's key is {hello.server.hex()}, expected {expected_server.hex()}; "
            "another server answers at this address"
        )


async def _send(frames: FrameStream, message: msgspec.Struct, timeout_s: float) -> None:
    await frames.send(msgspec.msgpack.encode(message), timeout_s)


def _decode(raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"handshake: {kind.__name__} cannot be read: {error}") from error
