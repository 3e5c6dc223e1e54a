"""The handshake: both sides prove their keys, strangers and liars get a reason and nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import memory_stream_pair

from psyche.errors import PsycheError, WireError
from psyche.wire.crypto import Identity
from psyche.wire.framing import ConnectionLost, FrameStream, FrameTimeout
from psyche.wire.handshake import (
    PROTOCOL_VERSION,
    HandshakeError,
    client_handshake,
    client_signed_bytes,
    server_handshake,
)

SERVER = Identity(bytes([1]) * 32)
CLIENT = Identity(bytes([2]) * 32)
OTHER = Identity(bytes([3]) * 32)
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
    return await server_handshake(frames, SERVER, "data", 5)


def honest_client(expected: bytes | None = SERVER.public, purpose: str = "data") -> Side:
    return lambda frames: client_handshake(frames, CLIENT, purpose, expected, 5)


async def test_both_sides_learn_the_others_key() -> None:
    assert await run_both(honest_client(), honest_server) == (SERVER.public, CLIENT.public)
    assert await run_both(honest_client(expected=None), honest_server) == (SERVER.public, CLIENT.public)


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


async def test_a_client_that_expects_another_server_hangs_up() -> None:
    client, server = await run_both(honest_client(expected=OTHER.public), honest_server)
    assert isinstance(client, HandshakeError)
    assert "another server answers" in str(client)
    assert isinstance(server, ConnectionLost)


async def test_a_purpose_that_is_not_served_is_refused_with_the_reason() -> None:
    client, server = await run_both(honest_client(purpose="coordinator"), honest_server)
    assert isinstance(client, HandshakeError)
    assert isinstance(server, HandshakeError)
    assert "this is the data service" in str(client)


@pytest.mark.parametrize("lie", ["other key", "other challenge", "other server", "no signature", "short key"])
async def test_a_forged_answer_is_refused(lie: str) -> None:
    async def liar(frames: FrameStream) -> list[Any]:
        _, server, challenge = decode(await frames.receive(5))
        signed = client_signed_bytes(
            OTHER.public if lie == "other server" else server,
            bytes(32) if lie == "other challenge" else challenge,
            "data",
        )
        signature = b"" if lie == "no signature" else (OTHER if lie == "other key" else CLIENT).sign(signed)
        key = CLIENT.public[:31] if lie == "short key" else CLIENT.public
        await frames.send(encode([key, bytes(32), "data", signature]), 5)
        return decode(await frames.receive(5))

    told, refused = await run_both(liar, honest_server)
    assert isinstance(refused, HandshakeError)
    assert told[0] == b""
    assert told[1] in str(refused)


async def test_a_server_that_cannot_sign_for_its_key_is_refused() -> None:
    async def thief(frames: FrameStream) -> None:
        await frames.send(encode([PROTOCOL_VERSION, SERVER.public, bytes(32)]), 5)
        client, challenge, purpose, _ = decode(await frames.receive(5))
        signed = b"psyche/handshake-server/1" + client + challenge + purpose.encode()
        await frames.send(encode([OTHER.sign(signed), ""]), 5)

    client, _ = await run_both(honest_client(), thief)
    assert isinstance(client, HandshakeError)
    assert "cannot prove" in str(client)


async def test_another_protocol_version_is_named() -> None:
    async def future(frames: FrameStream) -> None:
        await frames.send(encode([PROTOCOL_VERSION + 1, SERVER.public, bytes(32)]), 5)

    client, _ = await run_both(honest_client(), future)
    assert isinstance(client, HandshakeError)
    assert f"version {PROTOCOL_VERSION + 1}" in str(client)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x90", encode([1, "text", 3]), encode([CLIENT.public, bytes(32)])])
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
            await server_handshake(FrameStream(right, 1_000), SERVER, "data", 5)
        assert trio.current_time() - started == pytest.approx(5)
        nursery.cancel_scope.cancel()
