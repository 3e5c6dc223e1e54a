"""Nobody talks our libp2p node down to plaintext: not who is dialed, not who dials, not who sits between two nodes."""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.middle import Change, Middle, open_middle, open_port
from kits.tier import few
from libp2p.utils import encode_uvarint
from network_kit import PLAN, RUN, until_met

from psyche.errors import NetworkError
from psyche.network.node import P2PNode, get_peer_id, open_node
from psyche.testing.builders import build_identity
from psyche.wire.address_record import sign_address_record

HEADER = b"/multistream/1.0.0\n"
NOISE = b"/noise\n"
PLAINTEXT = b"/plaintext/2.0.0\n"
REFUSED = b"na\n"
INSECURE = (PLAINTEXT, b"/plaintext/1.0.0\n", b"/secio/1.0.0\n")
SPOKEN = {HEADER, NOISE, REFUSED}  # all that may ever be said in the clear: names of protocols


def encode(message: bytes) -> bytes:
    """A message of multistream-select: its length as one byte of varint, then the message."""
    assert len(message) < 128
    return bytes([len(message)]) + message


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole messages at the front of `data`, and the rest."""
    messages: list[bytes] = []
    while data and len(data) > data[0]:
        messages.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return messages, data


def replace_names(old: bytes, new: bytes) -> Change:
    """Rewrite a message of the negotiation, its length included."""
    return lambda data: data.replace(encode(old), encode(new))


@asynccontextmanager
async def open_pair(folder: Path) -> AsyncIterator[tuple[P2PNode, P2PNode]]:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(open_node(build_identity(n), "127.0.0.1", 0, folder / str(n)))
            for n in (1, 2)
        ]
        for node in nodes:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset(n.key for n in nodes))
        yield nodes[0], nodes[1]


def get_port(node: P2PNode) -> int:
    return int(node.address_record().addresses[0].rsplit("/", 1)[1])


def tell(dialer: P2PNode, number: int, port: int) -> None:
    dialer.set_addresses([sign_address_record(build_identity(number), [f"/ip4/127.0.0.1/tcp/{port}"], 1 << 40)])


def assert_only_names(said: bytes | bytearray) -> None:
    messages, rest = split(bytes(said))
    assert HEADER in messages
    assert set(messages) <= SPOKEN
    assert not rest


def set_changes(middle: Middle, to_server: Change, to_client: Change) -> None:
    """From now on, in all sessions that run or will run."""
    for line in (middle, *middle.sessions):
        line.change_to_server, line.change_to_client = to_server, to_client


async def hear_out(stream: trio.SocketStream) -> bytes:
    """All that comes until the other side ends the connection, however it does."""
    heard = bytearray()
    with trio.fail_after(120), suppress(trio.BrokenResourceError):
        async for data in stream:
            heard += data
    return bytes(heard)


async def listen_insecurely(stream: trio.SocketStream, said: bytearray) -> None:
    """Agree to plaintext alone, whatever is asked for first."""
    await stream.send_all(encode(HEADER))
    rest = b""
    async for data in stream:
        said += data
        messages, rest = split(rest + bytes(data))
        for message in messages:
            if message != HEADER:
                await stream.send_all(encode(message if message in INSECURE else REFUSED))


@pytest.mark.parametrize("answer", [REFUSED, PLAINTEXT, HEADER])
async def test_a_listener_that_speaks_plaintext_alone_is_told_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    """It refuses Noise, names plaintext instead, or repeats itself."""
    said = bytearray()

    async def listen(stream: trio.SocketStream) -> None:
        if answer == REFUSED:
            await listen_insecurely(stream, said)
            return
        await stream.send_all(encode(HEADER) + encode(answer) * 3)
        async for data in stream:
            said.extend(data)

    caplog.set_level(logging.INFO, "psyche.network")
    async with open_pair(tmp_path) as (node, _), open_port(listen) as port:
        key = build_identity(3).public
        with trio.fail_after(120), pytest.raises(NetworkError, match="not secure"):
            await node._transport.dial(key, f"/ip4/127.0.0.1/tcp/{port}")
        assert node.peers.get(key) is None
    assert_only_names(said)
    assert f"peer {key.hex()[:16]} at /ip4/127.0.0.1/tcp/{port}: not secure: no agreement on Noise" in caplog.text


@pytest.mark.parametrize("names", few([list(INSECURE), [b"/tls/1.0.0\n"], *([name] for name in INSECURE)], 2))
async def test_a_dialer_that_offers_no_noise_gets_nothing_but_a_refusal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[bytes]
) -> None:
    caplog.set_level(logging.INFO, "psyche.network.libp2p")
    heard = bytearray()
    async with open_pair(tmp_path) as (node, _):
        stream = await trio.open_tcp_stream("127.0.0.1", get_port(node))
        await stream.send_all(encode(HEADER) + b"".join(map(encode, names)))
        await stream.send_all(encode(b"exchange of keys\n") + os.urandom(64))  # as if it had been agreed to
        heard += await hear_out(stream)
        assert not node._transport._host.get_network().get_connections()  # type: ignore[attr-defined]
    assert_only_names(heard)
    assert NOISE not in split(bytes(heard))[0]
    assert "connection from 127.0.0.1 refused: not secure" in caplog.text


@pytest.mark.parametrize(
    "name", [encode_uvarint(1 << 62) + b"x", encode_uvarint(8 << 30) + b"x", b"\xff" * 10, encode(b"\xff\n"), b"\x02xy"]
)
async def test_a_name_that_cannot_be_one_is_refused_before_anything_is_allocated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: bytes
) -> None:
    """It is said to have exbytes or gigabytes, its length does not end, it is not text, or it has no newline."""
    caplog.set_level(logging.INFO, "psyche.network.libp2p")
    async with open_pair(tmp_path) as (node, _):
        stream = await trio.open_tcp_stream("127.0.0.1", get_port(node))
        await stream.send_all(encode(HEADER) + name)
        await hear_out(stream)
    assert "connection from 127.0.0.1 refused: not secure: no agreement on Noise" in caplog.text


async def test_a_whole_libp2p_host_that_offers_only_plaintext_does_not_get_in(tmp_path: Path) -> None:
    """It shows a member's public key, which everybody has, and has no secret key to it."""
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.keys import KeyPair
    from libp2p.custom_types import TProtocol
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
    from multiaddr import Multiaddr

    public = create_new_key_pair(build_identity(2).seed).public_key

    class Stolen:
        def get_public_key(self) -> Any:
            return public

    insecure = InsecureTransport(KeyPair(Stolen(), public))  # type: ignore[arg-type]
    host: Any = new_host(key_pair=create_new_key_pair(b"\5" * 32), sec_opt={TProtocol(PLAINTEXT_PROTOCOL_ID): insecure})
    async with open_pair(tmp_path) as (node, _), host.run(listen_addrs=[]):
        where = f"{node.address_record().addresses[0]}/p2p/{get_peer_id(node.key)}"
        with trio.fail_after(120), pytest.raises(Exception, match=r".*") as refused:
            await host.connect(info_from_p2p_addr(Multiaddr(where)))
        assert not isinstance(refused.value, trio.TooSlowError)
        assert node.peers.get(build_identity(2).public) is None
        await host.close()


@pytest.mark.parametrize(
    ("to_server", "to_client"),
    [
        (replace_names(NOISE, PLAINTEXT), bytes),
        (replace_names(NOISE, PLAINTEXT), replace_names(REFUSED, PLAINTEXT)),
        (replace_names(NOISE, PLAINTEXT), replace_names(REFUSED, NOISE)),
        (bytes, replace_names(NOISE, PLAINTEXT)),
        (bytes, replace_names(NOISE, REFUSED)),
    ],
    ids=["asks for plaintext", "and says yes", "and says yes to Noise", "answers plaintext", "answers no"],
)
async def test_who_strips_noise_from_the_negotiation_hears_no_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, to_server: Change, to_client: Change
) -> None:
    """Both nodes are ours: one dials, one listens, and neither takes the other for connected."""
    caplog.set_level(logging.INFO, "psyche.network")
    async with open_pair(tmp_path) as (dialer, listener):
        async with open_middle(get_port(listener)) as middle:
            set_changes(middle, to_server, to_client)
            with trio.fail_after(120), pytest.raises(NetworkError, match="not secure"):
                await dialer._transport.dial(listener.key, f"/ip4/127.0.0.1/tcp/{middle.port}")
        (session,) = middle.sessions
        assert not dialer.connected()
        assert not listener.connected()
    messages, rest = split(bytes(session.to_server))
    assert set(messages[:2]) == {HEADER, NOISE}
    # who was told that Noise is agreed to says its first message of Noise: an ephemeral key, nothing of ours
    assert len(rest) + sum(map(len, messages[2:])) <= 40
    assert b"psyche" not in session.to_server + session.to_client
    assert "not secure" in caplog.text


@pytest.mark.parametrize("way", ["to server", "to client"])
@pytest.mark.parametrize("deed", few(["flips a bit", "says more", "says less", "says it twice"], 2))
async def test_who_changes_a_byte_later_ends_the_connection_and_no_more(tmp_path: Path, way: str, deed: str) -> None:
    def change(data: bytes) -> bytes:
        half = len(data) // 2
        return {
            "flips a bit": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :],
            "says more": data + bytes([0, 16]) + os.urandom(16),
            "says less": data[:half],
            "says it twice": data + data,
        }[deed]

    async with open_pair(tmp_path) as (dialer, listener), open_middle(get_port(listener)) as middle:
        tell(dialer, 2, middle.port)
        await until_met(dialer, listener)
        set_changes(middle, *((change, bytes) if way == "to server" else (bytes, change)))
        talker, hearer = (dialer, listener) if way == "to server" else (listener, dialer)
        first = hearer.peers.get(talker.key)
        with trio.fail_after(120):
            while hearer.peers.get(talker.key) is first:  # the next one may be there at once, past the middle
                await talker.publish(b"is anybody there")
                await trio.sleep(0.05)
        while hearer.messages().statistics().current_buffer_used:
            assert hearer.messages().receive_nowait() == (talker.key, b"is anybody there")
        set_changes(middle, bytes, bytes)
        await until_met(dialer, listener)
