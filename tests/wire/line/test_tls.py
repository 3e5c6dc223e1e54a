"""TLS under a connection: who does not speak it, changes it, cuts it or stops in it ends that connection alone."""

import os
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kits.middle import Session, open_middle
from trio.testing import MockClock, memory_stream_pair

from psyche.errors import PsycheError, WireError
from psyche.testing.builders import build_identity
from psyche.wire.crypto import Identity, blake3_hash
from psyche.wire.line import tls
from psyche.wire.line.framing import ConnectionLost, FrameStream, FrameTimeout
from psyche.wire.line.handshake import WrongServer, client_handshake, server_handshake
from psyche.wire.line.pace import MAX_WAITING_PER_HOST, HostTurns
from psyche.wire.line.places import get_peer_host

SERVER = build_identity("server")
OTHER = build_identity("other")
CLIENT = build_identity("client")
CHANNEL = tls.make_channel(SERVER)
TIMEOUT_S = 10.0


@dataclass
class EchoServer:
    """Answers each frame with itself, over TLS, and keeps why each connection ended."""

    port: int = 0
    ends: list[PsycheError] = field(default_factory=list)
    news: trio.Event = field(default_factory=trio.Event)
    pace: HostTurns = field(default_factory=HostTurns)
    hosts: list[str] = field(default_factory=list)

    async def handle(self, stream: trio.abc.Stream) -> None:
        self.hosts.append(get_peer_host(stream))
        frames = FrameStream(stream, 1 << 20)
        try:
            await server_handshake(frames, CHANNEL, "data", TIMEOUT_S)
            while True:
                await frames.send(await frames.receive(60), 60)
        except PsycheError as error:
            self.ends.append(error)
            self.news.set()
        finally:
            await frames.aclose()

    async def get_end(self) -> PsycheError:
        with trio.fail_after(120):
            await self.news.wait()
        return self.ends[-1]


@asynccontextmanager
async def open_echo(context: ssl.SSLContext | None = None) -> AsyncIterator[EchoServer]:
    server = EchoServer()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listeners[0].socket.getsockname()[1]
        listener = tls.TlsListener(listeners[0], SERVER)
        listener._context = context or listener._context
        server.pace = listener._pace
        nursery.start_soon(trio.serve_listeners, server.handle, [listener])
        yield server
        nursery.cancel_scope.cancel()


async def connect(port: int, expected: bytes | None = SERVER.public) -> FrameStream:
    stream, channel = await tls.open_tls("127.0.0.1", port)
    frames = FrameStream(stream, 1 << 20)
    try:
        await client_handshake(frames, CLIENT, "data", channel, expected, TIMEOUT_S)
    except BaseException:
        await frames.aclose()
        raise
    return frames


async def echo(frames: FrameStream, data: bytes) -> bytes:
    await frames.send(data, 30)
    return await frames.receive(30)


def test_the_certificate_follows_from_the_key_and_names_it() -> None:
    certificate = tls.make_certificate(SERVER)
    assert certificate == tls.make_certificate(Identity(SERVER.seed))
    assert tls.read_channel(certificate) == CHANNEL == (SERVER.public, blake3_hash(certificate))
    assert tls.make_channel(OTHER).binding != CHANNEL.binding


async def test_under_tls_it_is_known_from_which_address_a_connection_comes() -> None:
    async with open_echo() as server:
        await (await connect(server.port)).aclose()
        assert server.hosts == ["127.0.0.1"]


async def test_frames_of_all_sizes_go_through(tmp_path: Path) -> None:
    async with open_echo() as server:
        frames = await connect(server.port)
        for size in (0, 1, 16_384, 16_385, 1 << 20):
            data = os.urandom(size)
            assert await echo(frames, data) == data
        with pytest.raises(WireError, match="at most 1048576"):
            await frames.send(bytes((1 << 20) + 1), 30)
        await frames.aclose()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "speaks HTTP without TLS"),
        ((70).to_bytes(4, "little") + bytes(70), "does not speak TLS"),
        (os.urandom(300), "TLS: "),
    ],
    ids=["http", "a frame without TLS", "noise"],
)
async def test_whoever_speaks_no_tls_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    async with open_echo() as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(raw)
        end = await server.get_end()
        assert isinstance(end, WireError)
        assert reason in str(end)
        with suppress(trio.BrokenResourceError):
            assert b"psyche" not in await stream.receive_some()
        await (await connect(server.port)).aclose()
        await stream.aclose()


async def test_a_client_that_speaks_tls_1_2_at_most_is_refused() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with open_echo() as server:
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", server.port), old)
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()
        assert "does not speak TLS 1.3" in str(await server.get_end())
        await trio.aclose_forcefully(stream)


def make_context(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey, folder: Path) -> ssl.SSLContext:
    """A server's context with another key in its certificate."""
    certificate = tls.x509.CertificateBuilder(
        tls._NAME, tls._NAME, key.public_key(), 7, tls._NOT_BEFORE, tls._NOT_AFTER
    ).sign(key, tls.x509.base.hashes.SHA256() if isinstance(key, rsa.RSAPrivateKey) else None)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "pem").write_bytes(certificate.public_bytes(Encoding.PEM) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    return context


async def test_a_server_that_speaks_tls_1_2_at_most_is_refused() -> None:
    old = tls.make_server_context(SERVER)
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    async with open_echo(old) as server:
        with pytest.raises(WireError, match=r"the other side does not speak TLS 1\.3"):
            await connect(server.port)


async def test_a_server_without_tls_is_refused() -> None:
    async def speak(stream: trio.abc.Stream) -> None:
        await stream.send_all((70).to_bytes(4, "little") + bytes(70))  # as servers did before TLS
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, speak, 0)
        with pytest.raises(WireError, match="does not speak TLS"):
            await tls.open_tls("127.0.0.1", listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_a_certificate_of_another_kind_of_key_is_refused(tmp_path: Path) -> None:
    async with open_echo(make_context(rsa.generate_private_key(65_537, 2_048), tmp_path)) as server:
        with pytest.raises(WireError, match="not an Ed25519 key"):
            await connect(server.port)


async def test_another_servers_certificate_is_refused_before_the_client_says_who_it_is() -> None:
    async with open_echo(tls.make_server_context(OTHER)) as server, open_middle(server.port) as middle:
        with pytest.raises(WrongServer, match="another server answers"):
            await connect(middle.port)
        (session,) = middle.sessions
        assert len(session.to_server) < 700, "TLS's own part, and nothing of ours"
        assert isinstance(await server.get_end(), ConnectionLost)


async def test_whoever_relays_a_client_to_the_server_cannot_speak_in_its_name() -> None:
    """The client expects no key yet and believes whoever answers; its signature is made for that one alone."""
    async with open_echo() as server:
        inner = await tls.open_tls("127.0.0.1", server.port)
        thief_frames = FrameStream(inner.stream, 1 << 20)

        async def relay(stream: trio.abc.Stream) -> None:
            outer = FrameStream(stream, 1 << 20)
            await outer.send(await thief_frames.receive(30), 30)
            await thief_frames.send(await outer.receive(30), 30)
            await outer.send(await thief_frames.receive(30), 30)

        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, relay, [tls.TlsListener(listeners[0], OTHER)])
            with pytest.raises(PsycheError, match="signature is not that of the key"):
                await connect(listeners[0].socket.getsockname()[1], expected=None)
            nursery.cancel_scope.cancel()
        assert "signature is not that of the key" in str(await server.get_end())


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def point_to_server(session: Session, change: Callable[[bytes], bytes]) -> None:
    session.change_to_server = change


def point_to_client(session: Session, change: Callable[[bytes], bytes]) -> None:
    session.change_to_client = change


@pytest.mark.parametrize("point", [point_to_server, point_to_client])
async def test_a_record_that_is_changed_ends_the_connection_and_nothing_of_it_is_read(
    point: Callable[[Session, Callable[[bytes], bytes]], None],
) -> None:
    async with open_echo() as server, open_middle(server.port) as middle:
        frames = await connect(middle.port)
        assert await echo(frames, b"before") == b"before"
        point(middle.sessions[0], flip)
        with pytest.raises((WireError, ConnectionLost)) as client_end:
            await echo(frames, b"after")
        await frames.aclose()
        ends = [str(client_end.value), str(await server.get_end())]
        assert any("changed on their way" in end for end in ends)


@pytest.mark.parametrize("point", [point_to_server, point_to_client])
async def test_a_record_that_is_cut_short_is_a_lost_connection(
    point: Callable[[Session, Callable[[bytes], bytes]], None],
) -> None:
    async with open_echo() as server, open_middle(server.port) as middle:
        frames = await connect(middle.port)
        session = middle.sessions[0]

        def cut(data: bytes) -> bytes:
            nursery.start_soon(hang_up)
            return data[:-3]

        async def hang_up() -> None:
            await trio.testing.wait_all_tasks_blocked(0.05)  # what was left of the record has gone on
            await session.hang_up()

        async with trio.open_nursery() as nursery:
            point(session, cut)
            with pytest.raises(ConnectionLost):
                await echo(frames, b"after")
        assert isinstance(await server.get_end(), ConnectionLost)
        await frames.aclose()


@pytest.mark.parametrize("opening", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a hello"])
async def test_whoever_stops_in_the_middle_of_tls_is_hung_up_on(opening: bytes, autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    line = trio.SSLStream(theirs, tls.make_server_context(SERVER), server_side=True, https_compatible=True)
    await ours.send_all(opening)
    with pytest.raises(FrameTimeout, match="not finished within 10 s"):
        await server_handshake(FrameStream(line, 1 << 20), CHANNEL, "data", TIMEOUT_S)
    assert trio.current_time() <= autojump_clock.current_time()


async def test_a_client_that_goes_away_in_the_middle_of_tls_is_a_lost_connection() -> None:
    async with open_echo() as server:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        await stream.send_all(b"\x16\x03\x01\x02\x00\x01")
        await stream.aclose()
        assert isinstance(await server.get_end(), ConnectionLost)


async def test_a_server_that_goes_away_in_the_middle_of_tls_is_named(autojump_clock: MockClock) -> None:
    ours, theirs = memory_stream_pair()
    await theirs.aclose()
    with pytest.raises(OSError, match="in the middle of the TLS handshake"):
        await tls.secure_client(ours)


async def test_closing_waits_for_nobody(autojump_clock: MockClock) -> None:
    """As Ctrl-C does, at a peer that reads nothing and says nothing any more."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    line = trio.SSLStream(theirs, tls.make_server_context(SERVER), server_side=True, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.do_handshake)
        client = (await tls.secure_client(ours)).stream
    began = trio.current_time()
    await FrameStream(client, 1 << 20).aclose()
    await FrameStream(line, 1 << 20).aclose()
    assert trio.current_time() == began


def test_the_secret_key_stays_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", lambda name: made.append(name) or create(name))
    tls.make_server_context(SERVER)
    assert made == ["psyche-tls"], "it is in memory alone"
    names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not any("psyche-tls" in name for name in names), "and gone"


async def test_between_two_handshakes_of_a_flood_a_session_that_is_served_has_its_turn() -> None:
    async with open_echo() as server, open_middle(server.port) as middle:
        await (await connect(middle.port)).aclose()
        opening = get_first_record(bytes(middle.sessions[0].to_server))
        served = await connect(server.port)
        flood = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        await trio.testing.wait_all_tasks_blocked(0.2)  # all are accepted, and waited for
        for one in flood:
            one.sendall(opening)
        assert await echo(served, b"now") == b"now"
        answered, _, _ = select.select(flood, [], [], 0)
        assert len(answered) < len(flood) // 2
        for one in flood:
            one.close()
        await served.aclose()


async def test_an_address_with_too_many_that_wait_is_turned_away_and_others_are_not() -> None:
    async with open_echo() as server, trio.open_nursery() as nursery:
        server.pace._is_running = True  # the turn is somebody's, and stays
        for _ in range(MAX_WAITING_PER_HOST):
            nursery.start_soon(server.pace.wait, "127.0.0.1")
        await trio.testing.wait_all_tasks_blocked()
        surplus = await trio.open_tcp_stream("127.0.0.1", server.port)
        with suppress(trio.BrokenResourceError):
            assert await surplus.receive_some() == b"", "closed before it says a byte"
        other = await trio.open_tcp_stream("127.0.0.1", server.port, local_address="127.0.0.2")
        server.pace._give()
        line, channel = await tls.secure_client(other)
        assert channel == CHANNEL
        await (await connect(server.port)).aclose()  # nobody waits any more
        await trio.aclose_forcefully(line)


def get_first_record(raw: bytes) -> bytes:
    return raw[: 5 + int.from_bytes(raw[3:5], "big")]
