"""TLS 1.3 under every TCP connection: nobody on the path can read, change, insert or replay bytes (K6).

The server's certificate carries its Ed25519 key, which is its identity; TLS 1.3 proves that it holds that key.
Names, dates and issuers are ignored: the client compares the key with the one it expects. The client has no
certificate. It proves its own key inside TLS (`wire/line/handshake.py`), by a signature that covers the hash of
the server's certificate and is therefore useless at any other server.

Every frame has a length prefix, so the end of a stream needs no protection: no `close_notify` is sent or
awaited, and closing never waits.
"""

import datetime as dt
import os
import socket
import ssl
from collections import deque
from functools import lru_cache
from typing import Final, NamedTuple

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from psyche.errors import WireError
from psyche.wire.crypto import Identity, blake3_hash
from psyche.wire.line.descriptors import is_spare
from psyche.wire.line.pace import HostTurns, PacedStream, get_host

ACCEPTED_AT_ONCE: Final = 4  # few enough that accepted connections are counted before the next ones are
_NAME: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "psyche")])
_SERIAL: Final = 1
_NOT_BEFORE: Final = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_NOT_AFTER: Final = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)  # RFC 5280: no expiration
_PROBLEMS: Final = {
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS",
    "HTTP_REQUEST": "the other side speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "the other side does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the other side does not speak TLS 1.3",
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": "bytes were changed on their way",
}


class Channel(NamedTuple):
    """The server's key (32 bytes), and the binding that a client's signature covers (32 bytes)."""

    server: bytes
    binding: bytes


class TlsConnection(NamedTuple):
    """A connection to a server that has proven its key; the caller must still check that it is the expected key."""

    stream: trio.abc.Stream
    channel: Channel


def make_certificate(identity: Identity) -> bytes:
    """Build the server's self-signed certificate (DER); deterministic for a key."""
    key = Ed25519PrivateKey.from_private_bytes(identity.seed)
    builder = x509.CertificateBuilder(_NAME, _NAME, key.public_key(), _SERIAL, _NOT_BEFORE, _NOT_AFTER)
    return builder.sign(key, None).public_bytes(Encoding.DER)


def make_channel(identity: Identity) -> Channel:
    return Channel(identity.public, blake3_hash(make_certificate(identity)))


def read_channel(certificate: bytes) -> Channel:
    """Read the channel from a server's certificate (DER).

    Raises:
        WireError: the certificate cannot be read, or its key is not an Ed25519 key.
    """
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise WireError(f"TLS: the server's certificate cannot be read: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise WireError("TLS: the key of the server's certificate is not an Ed25519 key")
    return Channel(key.public_bytes_raw(), blake3_hash(certificate))


def make_server_context(identity: Identity) -> ssl.SSLContext:
    """Build a server's TLS context for its identity; the secret key is never written to disk."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session resumption: each connection does a full handshake
    key = Ed25519PrivateKey.from_private_bytes(identity.seed)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = ssl.DER_cert_to_PEM_cert(make_certificate(identity)).encode()
    with os.fdopen(os.memfd_create("psyche-tls"), "wb", buffering=0) as file:  # OpenSSL reads keys from files only
        file.write(certificate + secret)
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


@lru_cache(maxsize=1)
def _make_client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # we check the key instead, which a host name does not identify
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsListener(trio.abc.Listener[trio.SSLStream]):
    """A listener whose connections speak TLS. The handshake runs on first use, within the user's timeout.

    All addresses share the operating system's accept queue: it is emptied whenever a connection arrives, and
    connections of an address with too many waiting for their turn are closed.
    """

    def __init__(self, listener: trio.SocketListener, identity: Identity) -> None:
        self._listener = listener
        self._raw = socket.socket(fileno=os.dup(listener.socket.fileno()))  # trio's own accepts one at a time
        self._raw.setblocking(False)
        self._context = make_server_context(identity)
        self._pace = HostTurns()
        self._accepted: deque[trio.SocketStream] = deque()

    async def accept(self) -> trio.SSLStream:
        while not self._accepted:
            self._take(await self._listener.accept())
            self._empty_queue()
        paced = PacedStream(self._accepted.popleft(), self._pace)
        paced.line = trio.SSLStream(paced, self._context, server_side=True, https_compatible=True)
        return paced.line

    def _empty_queue(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                one, _ = self._raw.accept()
            except OSError:  # no connection is waiting; a real error is raised to the next waiter
                return
            self._take(trio.SocketStream(trio.socket.from_stdlib_socket(one)))

    def _take(self, stream: trio.SocketStream) -> None:
        if self._pace.is_full(get_host(stream)) or is_spare(stream.socket.fileno()):
            stream.socket.close()
        else:
            self._accepted.append(stream)

    async def aclose(self) -> None:
        self._raw.close()
        for stream in self._accepted:
            stream.socket.close()
        await self._listener.aclose()


async def secure_client(stream: trio.abc.Stream) -> TlsConnection:
    """Start TLS as the client on a new connection, whose stream is owned from now on.

    Returns when the server has proven the key in its certificate. The caller sets a timeout.

    Raises:
        WireError: the other side does not speak TLS 1.3, or has no Ed25519 key.
        OSError: the connection broke.
    """
    line = trio.SSLStream(stream, _make_client_context(), https_compatible=True)
    try:
        await line.do_handshake()
        certificate = line.getpeercert(binary_form=True)
        assert isinstance(certificate, bytes), "no TLS 1.3 handshake is done without one"
        return TlsConnection(line, read_channel(certificate))
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(line)
        if problem := describe_problem(error):
            raise WireError(problem) from error
        raise ConnectionResetError("the connection was closed in the middle of the TLS handshake") from error
    except BaseException:
        await trio.aclose_forcefully(line)
        raise


async def open_tls(host: str, port: int) -> TlsConnection:
    """Connect to a server over TLS. The caller sets a timeout.

    Raises:
        OSError: the server cannot be reached, or the connection broke.
        WireError: the other side does not speak TLS 1.3, or has no Ed25519 key.
    """
    return await secure_client(await trio.open_tcp_stream(host, port))


def describe_problem(error: BaseException) -> str:
    """Describe what was wrong with the other side's TLS; empty if the connection only broke."""
    cause = error.__cause__
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, ssl.SSLEOFError | ssl.SSLSyscallError):
        return ""
    reason = cause.reason or str(cause)
    return f"TLS: {_PROBLEMS.get(reason, reason.replace('_', ' ').lower())}"
