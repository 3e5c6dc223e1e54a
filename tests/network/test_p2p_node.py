"""What only the libp2p node has: ports, addresses, the mesh, Noise, dead peers, inbound slots."""

import logging
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from network_kit import PLAN, PROBE, RUN, VICTIM_S, Victim, introduce, meet, open_peer, until_met

from psyche.core.state.state import ZERO32
from psyche.errors import NetworkError
from psyche.network.limits import NetworkLimits
from psyche.network.listening import build_address, get_reachable_addresses, lock_port
from psyche.network.node import P2PNode, get_key, get_peer_id, open_node, parse_address
from psyche.network.streams import BLOB
from psyche.testing.builders import build_identity
from psyche.wire.line.descriptors import SPARE

MESH_ONLY = NetworkLimits(direct_peers=0)


async def open_p2p(stack: AsyncExitStack, number: int, folder: Path, **kwargs: Any) -> P2PNode:
    node = open_node(build_identity(number), "127.0.0.1", kwargs.pop("port", 0), folder / str(number), **kwargs)
    return await stack.enter_async_context(node)


async def wait_for_mesh(nodes: list[P2PNode], neighbours: int) -> None:
    with trio.fail_after(120):
        for node in nodes:
            topic = f"psyche/{RUN.hex()}"
            while len(node._pubsub.router.mesh.get(topic, ())) < neighbours:
                await trio.sleep(0.05)


def test_a_port_is_held_against_a_second_node_and_free_again_afterwards() -> None:
    with (
        lock_port("127.0.0.1", 0) as port,
        pytest.raises(NetworkError, match="another process of psyche"),
        lock_port("127.0.0.1", port),
    ):
        pass
    with lock_port("127.0.0.1", port) as again:
        assert again == port


def test_a_port_that_another_program_listens_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(NetworkError, match=f"127.0.0.1 port {port}"), lock_port("127.0.0.1", port):
            pass


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(NetworkError, match=r"listen on 192\.0\.2\.1"), lock_port("192.0.2.1", 0):
        pass
    with pytest.raises(NetworkError, match="not an IP address"):
        build_address("localhost", 1)


def test_a_node_on_all_addresses_names_those_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psyche.network.listening.get_machine_addresses", lambda: ["127.0.0.1", "10.1.2.3", "::1"])
    assert get_reachable_addresses("0.0.0.0", 7) == ("/ip4/10.1.2.3/tcp/7",)
    assert get_reachable_addresses("::", 7) == ("/ip6/::1/tcp/7",)
    monkeypatch.setattr("psyche.network.listening.get_machine_addresses", lambda: ["127.0.0.1"])
    assert get_reachable_addresses("0.0.0.0", 7) == ("/ip4/127.0.0.1/tcp/7",)
    monkeypatch.setattr("psyche.network.listening.get_machine_addresses", lambda: [f"10.0.0.{n}" for n in range(1, 20)])
    assert len(get_reachable_addresses("0.0.0.0", 7)) == 8


@pytest.mark.parametrize(
    "address",
    [
        "",
        "rubbish",
        "/ip4/1.2.3.4",
        "/ip4/1.2.3.4/udp/5",
        "/ip4/1.2.3.4/tcp/5/ws",
        "/ip4/1.2.3.4/tcp/5/p2p-circuit",
        "/unix/etc/passwd",
    ],
)
def test_an_address_that_is_not_plain_tcp_is_not_dialed(address: str) -> None:
    with pytest.raises(NetworkError, match="address"):
        parse_address(address)


def test_a_key_and_a_peer_id_are_the_same_32_bytes() -> None:
    key = build_identity(5).public
    assert get_key(get_peer_id(key)) == key
    with pytest.raises(NetworkError, match="not an Ed25519 key"):
        get_peer_id(b"short")


async def test_the_host_offers_noise_and_yamux_and_only_what_it_needs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await open_p2p(stack, 1, tmp_path)
        host: Any = node._transport._host  # type: ignore[attr-defined]
        upgrader = host.get_network().upgrader
        assert [str(p) for p in upgrader.security_multistream.transports] == ["/noise"]
        assert [str(p) for p in upgrader.muxer_multistream.transports] == ["/yamux/1.0.0"]
        spoken = {str(p) for p in host.get_mux().handlers}
        assert {p for p in spoken if "psyche" in p} == {
            "/psyche/hello/1", "/psyche/gossip/1", "/psyche/sync/1", "/psyche/blob/1",
        }  # fmt: skip
        assert not any("/ipfs/id" in p for p in spoken)


async def test_a_mesh_carries_messages_to_who_is_not_connected_directly(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a, b, c = [await open_p2p(stack, n, tmp_path, limits=MESH_ONLY) for n in (1, 2, 3)]
        introduce([a, b, c])
        a.set_addresses([b.address_record()])
        c.set_addresses([b.address_record()])
        b.set_addresses([])
        with trio.fail_after(120):
            await b.wait_for_peers(frozenset({a.key, c.key}))
        assert c.key not in a.connected()
        await wait_for_mesh([a, c], 1)
        await wait_for_mesh([b], 2)
        await a.publish(b"over b")
        with trio.fail_after(120):
            assert await c.messages().receive() == (a.key, b"over b")
            assert await b.messages().receive() == (a.key, b"over b")


async def test_a_message_that_comes_both_ways_is_delivered_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        limits = NetworkLimits(relay_after_s=0)
        nodes = [await open_p2p(stack, n, tmp_path, limits=limits) for n in (1, 2, 3)]
        await meet(*nodes)
        await wait_for_mesh(nodes, 2)
        for node in nodes:  # one allowed peer is not there: the mesh carries everything too
            node.set_allowed(node.peers.allowed | {build_identity(77).public})
        for number in range(20):
            await nodes[0].publish(b"twice %d" % number)
        got: list[bytes] = []
        with trio.fail_after(120):
            while len(got) < 20:
                got.append((await nodes[1].messages().receive())[1])
        await trio.sleep(0.5)
        assert sorted(got) == sorted(b"twice %d" % n for n in range(20))
        assert nodes[1].statistics().gossip_received == 20


async def test_a_connection_that_libp2p_does_not_know_of_is_replaced(tmp_path: Path) -> None:
    """As one is whose upgrade took too long on a busy machine, after its first stream had come."""
    async with AsyncExitStack() as stack:
        one, two = nodes = [await open_p2p(stack, n, tmp_path) for n in (1, 2)]
        introduce(nodes, [ZERO32, PLAN])
        await until_met(*nodes)
        swarm = one._pubsub.host.get_network()
        swarm.connections.clear()
        one.set_plan(RUN, PLAN)  # it says hello once more
        with trio.fail_after(120):
            while not (swarm.get_connections(get_peer_id(two.key)) and one.peers.is_connected(two.key)):
                await one.peers.changed.wait()
        await one.publish(b"again")
        with trio.fail_after(120):
            assert (await two.messages().receive())[1] == b"again"


async def test_a_restarted_node_is_heard_over_the_mesh(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        a = await open_p2p(stack, 1, tmp_path, limits=MESH_ONLY)
        for number in range(2):
            async with AsyncExitStack() as inner:
                b = await open_p2p(inner, 2, tmp_path, limits=MESH_ONLY)
                await meet(a, b)
                await wait_for_mesh([a, b], 1)
                for index in range(5):
                    await b.publish(b"life %d message %d" % (number, index))
                    with trio.fail_after(120):
                        assert await a.messages().receive() == (b.key, b"life %d message %d" % (number, index))


async def test_a_node_lets_in_more_visitors_than_it_has_slots(tmp_path: Path) -> None:
    """The swarm's own handler gives a slot back only when the node ends."""
    limits = NetworkLimits(connections=2)
    async with AsyncExitStack() as stack:
        node = await open_p2p(stack, 1, tmp_path, limits=limits)
        host: Any = node._transport._host  # type: ignore[attr-defined]
        for _ in range(6):
            visitor = await trio.open_tcp_stream("127.0.0.1", int(str(host.get_addrs()[0]).split("/")[4]))
            await visitor.aclose()
        for number in range(4):
            async with AsyncExitStack() as inner:
                peer = await open_p2p(inner, 2, tmp_path)
                introduce([node, peer])
                node.set_addresses([])  # it is always the visitor who dials
                with trio.fail_after(120):
                    await node.wait_for_peers(frozenset({peer.key}))
            with trio.fail_after(120):
                while node.connected():
                    await node.peers.changed.wait()
            assert node.connected() == frozenset(), number


async def test_a_peer_that_stops_without_a_word_is_noticed(victim: Victim, tmp_path: Path) -> None:
    """SIGSTOP stands for a power cut: no FIN comes, only silence."""
    limits = NetworkLimits(health_check_s=1.0, ping_s=1.0)
    async with open_peer(PROBE, victim, tmp_path, limits=limits) as node:
        victim.process.send_signal(signal.SIGSTOP)
        try:
            with trio.fail_after(120):
                while node.connected():
                    await node.peers.changed.wait()
        finally:
            victim.process.send_signal(signal.SIGCONT)
        with trio.fail_after(VICTIM_S):
            await node.wait_for_peers(frozenset({victim.record.p2p}))


BLOCKED_S = 60.0


async def test_a_node_closes_in_time_with_a_peer_that_takes_nothing(victim: Victim, tmp_path: Path) -> None:
    async with open_peer(PROBE, victim, tmp_path) as node:
        try:
            stream = await node._transport.open_stream(victim.record.p2p, BLOB)
            victim.process.send_signal(signal.SIGSTOP)
            node.start_soon(stream.write, bytes(32 << 20))
            await trio.sleep(0.5)  # by now the write waits, shielded, for a window that does not come
            start, started = trio.current_time(), time.monotonic()
        except BaseException:
            victim.process.send_signal(signal.SIGCONT)
            raise
    took = trio.current_time() - start  # on a clock that counts no stall of the machine
    took_by_wall = time.monotonic() - started
    victim.process.send_signal(signal.SIGCONT)
    assert took < NetworkLimits().write_s, "F26: a node is gone long before a write is given up"
    assert took_by_wall < BLOCKED_S, "a blocked event loop stops the other clock too"


def test_the_memory_twin_starts_without_libp2p() -> None:
    code = "import sys, psyche.network.memory.node; sys.exit(any(m.split('.')[0] == 'libp2p' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_port_that_runs_out_of_files_refuses_and_tells_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        node = await open_p2p(stack, 1, tmp_path)
        port = int(node._transport.addresses()[0].rsplit("/", 1)[1])
        newest = stack.enter_context(socket.create_connection(("127.0.0.1", port))).fileno()
        former = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest + SPARE // 2 + 4, former[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, former)
        ended = 0
        for _ in range(6):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            with trio.fail_after(120):
                ended += not await stream.receive_some(1)
        assert ended >= 4, "each takes two descriptors of this process"
        assert caplog.text.count("connections are refused: this process may open only") == 1
        assert "Traceback" not in caplog.text
