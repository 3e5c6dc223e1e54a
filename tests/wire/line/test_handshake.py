"""The handshake: the client proves its key to this server alone; strangers and liars get a reason and nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import memory_stream_pair

from psyche.errors import PsycheError, WireError
from psyche.testing.builders import build_identity
from psyche.wire.line.framing import ConnectionLost, FrameStream, FrameTimeout
from psyche.wire.line.handshake import (
    PROTOCOL_VERSION,
    HandshakeError,
    WrongServer,
    client_handshake,
    server_handshake,
    signed_bytes,
)
from psyche.wire.line.tls import make_channel

SERVER = build_identity("server")
CLIENT = build_identity("client")
OTHER = build_identity("other")
CHANNEL = make_channel(SERVER)
encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode

Side = Callable[[FrameStream], Awaitable[Any]]


async def run_both(client: Side, server: Side) -> tuple[Any, Any]:
    """What both sides return or raise; each closes its end when it is done."""
    left, right = memory_stream_pair()
    outcome: dict[str, Any] = {}

    async def run(name: str, side: Side, stream: trio.abc.Stream) -> None:
        frames = FrameStream(stream, 1 << 20)
        try:
            outcome[name] = await side(frames)
        except PsycheError as error:
            outcome[name] = error
            await frames.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "client", client, left)
        nursery.start_soon(run, "server", server, right)
    return outcome["client"], outcome["server"]


async def honest_server(frames: FrameStream) -> bytes:
    return await server_handshake(frames, CHANNEL, "data", 5)


def honest_client(expected: bytes | None = SERVER.public, purpose: str = "data") -> Side:
    return lambda frames: client_handshake(frames, CLIENT, purpose, CHANNEL, expected, 5)


async def test_the_server_learns_the_clients_key() -> None:
    assert await run_both(honest_client(), honest_server) == (None, CLIENT.public)
    assert await run_both(honest_client(expected=None), honest_server) == (None, CLIENT.public)


async def test_the_frame_limit_is_small_for_strangers_and_comes_back_afterwards() -> None:
    limits: list[int] = []

    async def server(frames: FrameStream) -> bytes:
        key = await honest_server(frames)
        limits.append(frames.max_frame_bytes)
        return key

    async def client(frames: FrameStream) -> None:
        await frames.receive(5)
        await frames.send(bytes(2_000), 5)

    await run_both(honest_client(), server)
    assert limits == [1 << 20]
    _, refused = await run_both(client, honest_server)
    assert isinstance(refused, WireError)
    assert "2000 bytes announced, at most 1024" in str(refused)


async def test_a_client_that_expects_another_server_hangs_up_before_it_says_a_byte() -> None:
    heard: list[int] = []

    async def server(frames: FrameStream) -> bytes:
        try:
            return await honest_server(frames)
        finally:
            heard.append(frames.bytes_received)

    client, refused = await run_both(honest_client(expected=OTHER.public), server)
    assert isinstance(client, WrongServer)
    assert "another server answers" in str(client)
    assert isinstance(refused, ConnectionLost)
    assert heard == [0]


async def test_a_purpose_that_is_not_served_is_refused_with_the_reason() -> None:
    client, server = await run_both(honest_client(purpose="coordinator"), honest_server)
    assert isinstance(client, HandshakeError)
    assert isinstance(server, HandshakeError)
    assert "this is the data service" in str(client)


@pytest.mark.parametrize(
    "lie",
    ["other key", "other challenge", "other server", "other certificate", "other purpose", "no signature", "short key"],
)
async def test_a_forged_answer_is_refused(lie: str) -> None:
    async def liar(frames: FrameStream) -> list[Any]:
        _, challenge = decode(await frames.receive(5))
        channel = make_channel(OTHER) if lie == "other server" else CHANNEL
        signed = signed_bytes(
            channel._replace(binding=bytes(32)) if lie == "other certificate" else channel,
            bytes(32) if lie == "other challenge" else challenge,
            "coordinator" if lie == "other purpose" else "data",
        )
        signature = b"" if lie == "no signature" else (OTHER if lie == "other key" else CLIENT).sign(signed)
        key = CLIENT.public[:31] if lie == "short key" else CLIENT.public
        await frames.send(encode([key, "data", signature]), 5)
        return decode(await frames.receive(5))

    told, refused = await run_both(liar, honest_server)
    assert isinstance(refused, HandshakeError)
    assert told[0]
    assert told[0] in str(refused)


def test_the_signed_bytes_are_those_of_the_reference() -> None:
    signed = signed_bytes(CHANNEL, bytes([7]) * 32, "coordinator")
    assert signed == b"psyche/handshake/2" + SERVER.public + CHANNEL.binding + bytes([7]) * 32 + b"coordinator"


async def test_another_protocol_version_is_named() -> None:
    async def future(frames: FrameStream) -> None:
        await frames.send(encode([PROTOCOL_VERSION + 1, bytes(32)]), 5)

    client, _ = await run_both(honest_client(), future)
    assert isinstance(client, HandshakeError)
    assert f"version {PROTOCOL_VERSION + 1}" in str(client)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x90", encode([1, "text", 3]), encode([CLIENT.public, "data"])])
async def test_bytes_that_are_no_answer_are_malformed(raw: bytes) -> None:
    async def junk(frames: FrameStream) -> None:
        await frames.receive(5)
        await frames.send(raw, 5)

    _, refused = await run_both(junk, honest_server)
    assert isinstance(refused, WireError)


async def test_a_client_that_says_nothing_is_hung_up_on(autojump_clock: trio.testing.MockClock) -> None:
    async def silent(frames: FrameStream) -> None:
        await frames.receive(5)
        await trio.sleep(60)

    started = trio.current_time()
    _, refused = await run_both(silent, honest_server)
    assert isinstance(refused, FrameTimeout)
    assert trio.current_time() - started <= 60


async def test_dripping_bytes_does_not_stretch_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    left, right = memory_stream_pair()

    async def drip() -> None:
        await left.send_all((100).to_bytes(4, "little"))
        for _ in range(50):
            await trio.sleep(1)
            await left.send_all(b"\x00")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        started = trio.current_time()
        with pytest.raises(FrameTimeout):
            await server_handshake(FrameStream(right, 1_000), CHANNEL, "data", 5)
        assert trio.current_time() - started == pytest.approx(5)
        nursery.cancel_scope.cancel()
