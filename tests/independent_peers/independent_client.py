"""A client of both servers built from docs/peer-protocol.md alone: blocking sockets, nothing of psyche."""

import random
import socket
import ssl
import struct
from collections import deque
from typing import Any

import msgspec
import zstandard
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from independent_messages import build_record

STATE_BYTES = 165_192
TIMEOUT_S = 60.0
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Line:
    """An authenticated connection: TLS, the handshake, then frames."""

    def __init__(self, port: int, server_key: bytes, seed: bytes, purpose: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._socket = context.wrap_socket(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
        certificate = self._socket.getpeercert(binary_form=True)
        assert certificate is not None
        shown = x509.load_der_x509_certificate(certificate).public_key()
        assert isinstance(shown, Ed25519PublicKey)
        assert shown.public_bytes_raw() == server_key, "another server answers"
        secret = Ed25519PrivateKey.from_private_bytes(seed)
        self.key = secret.public_key().public_bytes_raw()
        version, challenge = self.receive()
        assert (version, len(challenge)) == (2, 32)
        binding = blake3(certificate).digest()
        signed = b"psyche/handshake/2" + server_key + binding + challenge + purpose.encode()
        self.send([self.key, purpose, secret.sign(signed)])
        assert self.receive() == [""], "not welcome"

    def send(self, message: Any) -> None:
        body = pack(message)
        self._socket.sendall(struct.pack("<I", len(body)) + body)

    def receive(self) -> Any:
        (size,) = struct.unpack("<I", self._read(4))
        return unpack(self._read(size))

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            assert part, "the server hung up"
            found += part
        return found

    def close(self) -> None:
        self._socket.close()


class Client:
    """A follower of the run: sends requests, and keeps the state and the address book up to date."""

    def __init__(self, port: int, server_key: bytes, seed: bytes) -> None:
        self.line = Line(port, server_key, seed, "coordinator")
        self.state, self.nonce, self.deltas = b"", -1, 0
        self.passed: deque[bytes] = deque(maxlen=64)  # the states that came since somebody looked
        self.book: dict[bytes, list[Any]] = {}

    def ask(self, body: list[Any], number: int | None = None) -> list[Any]:
        """Send a request and return [code, on_record, body] of its answer."""
        number = random.getrandbits(63) if number is None else number
        self.line.send([number, body])
        while True:
            kind, *message = self.line.receive()
            if kind == "reply":
                answered, code, _, _, on_record, _, found = message
                assert answered == number
                return [code, on_record, found]
            self.take(kind, message)

    def take_push(self) -> str:
        kind, *message = self.line.receive()
        self.take(kind, message)
        return kind

    def take(self, kind: str, message: list[Any]) -> None:
        if kind in ("state", "delta"):
            self.take_state(kind, message)
            self.passed.append(self.state)
        elif kind == "book":
            whole, records, removed = message
            self.book = {} if whole else {key: one for key, one in self.book.items() if key not in removed}
            self.book |= {one[0]: one for one in records}

    def take_state(self, kind: str, message: list[Any]) -> None:
        if kind == "state":
            self.nonce, _, digest, compressed = message
            self.state = decompress(compressed)
        else:
            former, to_nonce, _, digest, runs = message
            assert former == self.nonce, "a delta from another state"
            self.nonce = to_nonce
            self.state = patch(self.state, runs)
            self.deltas += 1
        assert blake3(self.state).digest()[:16] == digest


def decompress(frame: bytes) -> bytes:
    raw = zstandard.ZstdDecompressor().decompress(frame, max_output_size=STATE_BYTES)
    assert len(raw) == STATE_BYTES
    return raw


def patch(state: bytes, runs: list[tuple[int, bytes]]) -> bytes:
    after = bytearray(state)
    for offset, data in runs:
        after[offset : offset + len(data)] = data
    return bytes(after)


def follow(port: int, server_key: bytes, seed: bytes, run_id: str) -> dict[str, Any]:
    """Greet, look, subscribe, join, repeat the join, report, and watch until the own slot is on record."""
    client, seen = Client(port, server_key, seed), {}
    seen["greeting"] = client.ask(["hello", 4, run_id, "an independent client"])
    seen["status"] = client.ask(["status"])
    report = ["report", ["independent", "waiting", "for members", 0, 0, 0, None, 12.5, ""]]
    seen["too early"] = client.ask(report)
    seen["subscribed"] = client.ask(["subscribe"])
    while not client.state:
        client.take_push()
    record = build_record(seed, ["/ip4/127.0.0.1/tcp/4001"])
    join = ["submit", 2, client.line.key + bytes(8), None, record]
    seen["joined"], seen["repeated"] = client.ask(join, 77), client.ask(join, 77)
    slots = 111_872 + 64  # Registry, then 192 bytes a slot: signer, p2p
    while client.line.key not in (client.state[slots : slots + 32], client.state[slots + 32 : slots + 64]):
        client.take_push()
    while client.line.key not in client.book:
        client.take_push()
    seen["deltas"], seen["reported"] = client.deltas, client.ask(report)
    seen["members"], seen["pinged"] = client.ask(["members"]), client.ask(["ping"])
    seen["recorded"] = decompress(client.ask(["record"])[2][4])[slots : slots + 32] == client.line.key
    seen["announced"], seen["state"] = client.ask(["announce", record]), client.state
    client.line.close()
    return seen


def greet_wrongly(port: int, server_key: bytes, seed: bytes) -> list[Any]:
    """The answer to a hello of another version, and the goodbye behind it."""
    line = Line(port, server_key, seed, "coordinator")
    line.send([1, ["hello", 1, "", "an independent client"]])
    answer, goodbye = line.receive(), line.receive()
    line.close()
    return [answer[0], answer[2], goodbye[0]]


def fetch(port: int, server_key: bytes, seed: bytes, *requests: list[int]) -> list[Any]:
    """The data server's replies to requests (epoch, height, start, end)."""
    line, replies = Line(port, server_key, seed, "data"), []
    for request in requests:
        line.send(request)
        replies.append(line.receive())
    line.close()
    return replies
