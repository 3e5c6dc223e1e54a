"""What a hostile or broken peer does to our libp2p node: nothing.

One victim in a process of its own takes all attacks one after another. After each, a fresh peer must
still be let in, pinged, answered and gossiped with.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from libp2p.pubsub.pb import rpc_pb2
from network_kit import MEMBER, PROBE, RUN, VICTIM_S, Victim, open_peer

from psyche.errors import NetworkError
from psyche.network.node import P2PNode, get_peer_id
from psyche.wire.ports import SyncRequest

pytestmark = pytest.mark.e2e
MIB = 1 << 20
MESH = "/meshsub/1.1.0"


async def assert_alive(victim: Victim, folder: Path) -> int:
    """A fresh peer is let in, pinged, answered and heard; returns the most memory it ever held, in bytes."""
    assert victim.process.poll() is None, "the victim's process ended"
    async with open_peer(PROBE, victim, folder / "probe") as probe:
        with trio.fail_after(VICTIM_S):
            assert await ping(probe, victim) >= 0
            text = os.urandom(8)
            await probe.publish(text)
            async for origin, message in probe.messages():  # the mesh repeats what it carried in the last seconds
                assert origin == victim.record.p2p
                if message == b"echo " + text:
                    break
            reply = await probe.ask(
                victim.record.p2p, SyncRequest("table", height=15, key=bytes(32)), timeout_s=VICTIM_S
            )
            assert reply.found
    return int.from_bytes(reply.items[0], "little")


async def ping(node: P2PNode, victim: Victim) -> float:
    from libp2p.host.ping import PingService

    times = await PingService(node._transport._host).ping(get_peer_id(victim.record.p2p))  # type: ignore[attr-defined]
    return times[0]


async def open_raw(node: P2PNode, victim: Victim, protocol: str) -> Any:
    host: Any = node._transport._host  # type: ignore[attr-defined]
    return await host.new_stream(get_peer_id(victim.record.p2p), [protocol])


def get_connection(node: P2PNode, victim: Victim) -> Any:
    swarm: Any = node._transport._swarm  # type: ignore[attr-defined]
    return swarm.get_connections(get_peer_id(victim.record.p2p))[0]


async def send_rpc(node: P2PNode, victim: Victim, *payloads: bytes) -> None:
    from libp2p.utils import encode_varint_prefixed

    for payload in payloads:
        stream = await open_raw(node, victim, MESH)
        await stream.write(encode_varint_prefixed(payload))
        await trio.sleep(0.1)


def get_topic() -> str:
    return f"psyche/{RUN.hex()}"


async def test_an_untouched_victim_is_alive(victim: Victim, tmp_path: Path) -> None:
    assert await assert_alive(victim, tmp_path) > 0


async def test_attack_01_rubbish_on_the_port(victim: Victim, tmp_path: Path) -> None:
    for _ in range(20):
        stream = await trio.open_tcp_stream("127.0.0.1", victim.port)
        await stream.send_all(os.urandom(200))
        await stream.aclose()
    await assert_alive(victim, tmp_path)


@pytest.mark.whole
async def test_attack_02_two_hundred_half_open_connections(victim: Victim, tmp_path: Path) -> None:
    """They may hold this address's waiting places until the handshake's time-out, and nobody else's."""
    streams = [await trio.open_tcp_stream("127.0.0.1", victim.port) for _ in range(200)]
    await assert_alive(victim, tmp_path)
    for stream in streams:
        await stream.aclose()


def build_message(**changes: Any) -> bytes:
    values = {"data": b"z" * 100, "topicIDs": [get_topic()], "seqno": bytes(8), "signature": b"s" * 64} | changes
    return rpc_pb2.RPC(publish=[rpc_pb2.Message(**values)]).SerializeToString()


def build_control() -> bytes:
    rpc: Any = rpc_pb2.RPC()
    prune = rpc.control.prune.add(topicID=get_topic(), backoff=2**40)
    prune.peers.add(peerID=b"\xff\xff", signedPeerRecord=b"junk")
    rpc.control.graft.add(topicID="x" * 10)
    rpc.control.ihave.add(topicID=get_topic(), messageIDs=[b"\xff" * 10, b""])
    rpc.control.iwant.add(messageIDs=[b"\xff" * 10, b"abc"])
    return rpc.SerializeToString()


@pytest.mark.parametrize(
    "payloads",
    [
        [os.urandom(300), b"\xff" * 50],
        [build_message(from_id=b"\x12\x20" + os.urandom(32), key=b"\xff" * 40)],
        [build_message(from_id=sender, key=b"k") for sender in (b"", b"\xff" * 5, os.urandom(600))],
        [build_control()],
    ],
    ids=["rubbish", "a broken key", "broken senders", "control messages of rubbish"],
)
async def test_attacks_04_to_06_and_08_gossip_frames(victim: Victim, tmp_path: Path, payloads: list[bytes]) -> None:
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        await send_rpc(member, victim, *payloads)
    await assert_alive(victim, tmp_path)


async def test_attack_07_a_gossip_frame_of_a_gigabyte(victim: Victim, tmp_path: Path) -> None:
    before = await assert_alive(victim, tmp_path)
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        stream = await open_raw(member, victim, MESH)
        await stream.write(b"\x80\x80\x80\x80\x04" + b"x" * 1_000)
        await trio.sleep(0.2)
        from libp2p.network.stream.exceptions import StreamEOF, StreamReset

        direct = await open_raw(member, victim, "/psyche/gossip/1")
        await direct.write(b"\xff\xff\xff\x7f" + b"x" * 1_000)
        with trio.fail_after(VICTIM_S), pytest.raises((StreamEOF, StreamReset)):
            await direct.read(1)
    assert await assert_alive(victim, tmp_path) < before + 20 * MIB


async def test_attack_09_a_question_whose_answer_never_ends(victim: Victim, tmp_path: Path) -> None:
    """An asynchronous callback of the application that hangs holds its own question alone."""
    async with open_peer(MEMBER, victim, tmp_path / "m") as member, trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(NetworkError):
                await member.ask(victim.record.p2p, SyncRequest("announcements", height=14), timeout_s=2)

        for _ in range(12):
            nursery.start_soon(ask)
        await trio.sleep(0.3)
        await assert_alive(victim, tmp_path)


async def test_attack_10_a_message_that_trips_a_bug_of_the_validator(victim: Victim, tmp_path: Path) -> None:
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        with trio.fail_after(VICTIM_S):
            while get_topic() not in member._pubsub.peer_topics:
                await trio.sleep(0.05)
        await member._broadcast(b"validator bug")
        await member.publish(b"validator bug")
        await trio.sleep(0.3)
    await assert_alive(victim, tmp_path)


@pytest.mark.parametrize("protocol", ["/ipfs/id/push/1.0.0", "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"])
async def test_attacks_11_to_13_rubbish_to_the_protocols_of_libp2p(
    victim: Victim, tmp_path: Path, protocol: str
) -> None:
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        for size in range(20):
            try:
                stream = await open_raw(member, victim, protocol)
                await stream.write(os.urandom(40 + 37 * size))
                await stream.close()
            except Exception:  # noqa: BLE001 - refused is fine
                continue
    await assert_alive(victim, tmp_path)


async def test_attack_14_rubbish_in_place_of_a_protocol_name(victim: Victim, tmp_path: Path) -> None:
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        connection = get_connection(member, victim)
        for size in range(20):
            stream = await connection.new_stream()
            await stream.write(os.urandom(30 + 50 * size))
            await (stream.reset() if size % 2 else stream.close())
    await assert_alive(victim, tmp_path)


async def test_attack_15_rubbish_in_place_of_yamux_frames(victim: Victim, tmp_path: Path) -> None:
    from libp2p.io.exceptions import IOException

    frames = [(0, 1, 77, 20), (1, 1, 79, 2**32 - 1), (0, 0, 999, 10), (2, 1, 0, 5), (0, 1, 81, 10), (7, 0, 0, 4)]
    before = await assert_alive(victim, tmp_path)
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        secured = get_connection(member, victim).muxed_conn.secured_conn
        with suppress(IOException):  # the victim may close the connection before all of it is sent
            for kind, flags, stream, length in frames:
                body = os.urandom(length) if kind == 0 else b""
                await secured.write(struct.pack("!BBHII", 0, kind, flags, stream, length) + body)
            await secured.write(struct.pack("!BBHII", 0, 0, 0, 1, 2**31))
            await secured.write(os.urandom(500))
        await trio.sleep(0.3)
    assert await assert_alive(victim, tmp_path) < before + 20 * MIB


async def test_attack_16_bytes_past_the_window_of_a_stream_that_nobody_reads(victim: Victim, tmp_path: Path) -> None:
    before = await assert_alive(victim, tmp_path)
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        connection = get_connection(member, victim)
        stream = await open_raw(member, victim, "/psyche/sync/1")
        from psyche.network.sync import encode_sync_request

        raw = encode_sync_request(SyncRequest("announcements", height=14))  # the handler sleeps: nothing more is read
        await stream.write(len(raw).to_bytes(4, "little") + raw)
        header = struct.pack("!BBHII", 0, 0, 0, stream.muxed_stream.stream_id, 65_536)
        with trio.fail_after(VICTIM_S):
            while not connection.is_closed:
                try:
                    await connection.muxed_conn.secured_conn.write(header + b"x" * 65_536)
                except Exception:  # noqa: BLE001 - closed: what we want
                    break
    assert await assert_alive(victim, tmp_path) < before + 40 * MIB


@pytest.mark.whole
async def test_attack_17_a_reader_that_asks_for_everything_and_reads_nothing(victim: Victim, tmp_path: Path) -> None:
    from psyche.network.blobs.messages import BlobRequest, encode_blob_request

    before = await assert_alive(victim, tmp_path)
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        for _ in range(8):
            stream = await open_raw(member, victim, "/psyche/blob/1")
            await stream.write(encode_blob_request(BlobRequest(victim.blob, 0, 16)) * 50)
        await trio.sleep(0.5)
        async with open_peer(PROBE, victim, tmp_path / "p") as probe:  # others are served meanwhile
            size = 16 * MIB
            data = await probe.fetch(
                victim.blob, [victim.record.p2p], size_bytes=size, deadline=trio.current_time() + VICTIM_S
            )
            assert len(data) == size
    assert await assert_alive(victim, tmp_path) < before + 80 * MIB


@pytest.mark.whole
@pytest.mark.parametrize("protocol", ["/psyche/sync/1", "/psyche/blob/1", "raw"])
async def test_attack_18_more_streams_than_anyone_needs(victim: Victim, tmp_path: Path, protocol: str) -> None:
    before = await assert_alive(victim, tmp_path)
    opened = 0
    async with open_peer(MEMBER, victim, tmp_path / "m") as member:
        connection = get_connection(member, victim)
        with trio.move_on_after(3):
            try:
                for _ in range(2_000):
                    await (connection.new_stream() if protocol == "raw" else open_raw(member, victim, protocol))
                    opened += 1
            except Exception:  # noqa: BLE001 - refused: what we want
                pass
        assert opened < 2_000
    assert await assert_alive(victim, tmp_path) < before + 20 * MIB


async def test_after_all_of_this_nothing_was_said_on_stderr(victim: Victim, tmp_path: Path) -> None:
    await assert_alive(victim, tmp_path)
    assert victim.stderr.read_text(encoding="utf-8") == ""
