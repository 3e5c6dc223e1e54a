"""The simulated links: latency, bandwidth, loss and cuts, in simulated time and repeatable."""

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from network_kit import introduce, meet, set_link
from trio.testing import MockClock

from psyche.errors import NetworkError
from psyche.network.dialing import MAX_DIALS
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.node import MemoryHub, MemoryNode
from psyche.testing.builders import build_identity

MIB = 1 << 20


@asynccontextmanager
async def open_nodes(hub: MemoryHub, count: int, folder: Path) -> AsyncIterator[list[MemoryNode]]:
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(hub.open_node(build_identity(n + 1), folder / str(n))) for n in range(count)
        ]
        await meet(*nodes)
        yield nodes


@pytest.fixture
def hub(autojump_clock: MockClock) -> MemoryHub:
    return MemoryHub(random.Random(1))


async def test_a_peer_counts_as_out_of_reach_once_it_has_been_missing_for_long(tmp_path: Path, hub: MemoryHub) -> None:
    """Whoever is only just being dialed needs no mesh."""
    async with open_nodes(hub, 2, tmp_path) as (a, b):
        await trio.sleep(60)
        assert not a.peers.has_unreachable()
        a.set_allowed(a.peers.allowed | {build_identity(77).public})
        await trio.sleep(a.limits.relay_after_s - 0.1)
        assert not a.peers.has_unreachable()
        await trio.sleep(0.1)
        assert a.peers.has_unreachable()
        a.set_allowed(frozenset({b.key}))
        assert not a.peers.has_unreachable()
        hub.links.cut([a.key], [b.key])
        await trio.sleep(60)
        assert a.peers.has_unreachable()
        hub.links.heal()
        await trio.sleep(120)
        assert not a.peers.has_unreachable()


async def test_a_payload_takes_its_size_over_the_bandwidth(tmp_path: Path, hub: MemoryHub) -> None:
    async with open_nodes(hub, 2, tmp_path) as (a, b):
        hub.links.set_uplink(a.key, b.key, LinkConditions(latency_s=0.1, bandwidth_bytes_s=MIB))
        blob = await a.provide(bytes(10 * MIB), expires=None)
        start = trio.current_time()
        await b.fetch(blob, [a.key], size_bytes=10 * MIB, deadline=start + 60)
        took = trio.current_time() - start
        assert 10.0 < took < 12.5
        assert b._fetcher.book.statistics[a.key].rate_bytes_s == pytest.approx(MIB, rel=0.2)


async def test_a_cut_ends_connections_and_healing_brings_them_back(tmp_path: Path, hub: MemoryHub) -> None:
    async with open_nodes(hub, 3, tmp_path) as (a, b, c):
        hub.links.cut([a.key], [b.key, c.key])
        assert a.connected() == frozenset()
        assert b.connected() == {c.key}
        await trio.sleep(600)
        assert a.connected() == frozenset()
        hub.links.heal()
        with trio.fail_after(61):  # the redial's longest pause
            await a.wait_for_peers(frozenset({b.key, c.key}))


async def test_announcements_under_way_are_lost_with_their_connection(tmp_path: Path, hub: MemoryHub) -> None:
    """All of them, and not only the last one, whether or not the two are connected again when they would arrive."""
    async with open_nodes(hub, 2, tmp_path) as (a, b):
        set_link(hub.links, a.key, b.key, LinkConditions(latency_s=60))
        for number in range(3):
            await a.publish(b"lost %d" % number)
        set_link(hub.links, a.key, b.key, LinkConditions())
        hub.links.cut([a.key], [b.key])
        hub.links.heal()
        await trio.sleep(50)
        assert b.key in a.connected()
        await trio.sleep(50)
        await a.publish(b"after")
        assert (await b.messages().receive())[1] == b"after"


async def test_redialing_doubles_from_one_second_to_a_minute(tmp_path: Path, hub: MemoryHub) -> None:
    async with (
        hub.open_node(build_identity(1), tmp_path / "a") as a,
        hub.open_node(build_identity(2), tmp_path / "b") as b,
    ):
        dials: list[float] = []
        inner = a._transport.dial

        async def dial(key: bytes, address: str) -> None:
            dials.append(trio.current_time())
            await inner(key, address)

        a._transport.dial = dial
        hub.links.cut([a.key], [b.key])
        introduce([a, b])
        await trio.sleep(600)
        pauses = [later - earlier for earlier, later in pairwise(dials)]
        for index, pause in enumerate(pauses):
            longest = min(2.0**index, 60)
            assert longest / 2 <= pause <= longest + 0.01
        assert len(set(pauses[7:])) > 1, "jitter"


async def test_the_oldest_message_makes_room(tmp_path: Path, hub: MemoryHub) -> None:
    from psyche.network.limits import NetworkLimits

    limits = NetworkLimits(inbox_messages=3)
    async with hub.open_node(build_identity(1), tmp_path / "a") as a, hub.open_node(
        build_identity(2), tmp_path / "b", limits=limits
    ) as b:  # fmt: skip
        await meet(a, b)
        for number in range(5):
            await a.publish(bytes([number]))
        await trio.sleep(1)
        assert [b.messages().receive_nowait()[1][0] for _ in range(3)] == [2, 3, 4]


async def test_a_partitioned_source_is_waited_for_until_the_deadline(tmp_path: Path, hub: MemoryHub) -> None:
    async with open_nodes(hub, 2, tmp_path) as (a, b):
        blob = await a.provide(b"late", expires=None)
        hub.links.cut([a.key], [b.key])
        start = trio.current_time()
        with pytest.raises(NetworkError, match="not connected"):
            await b.fetch(blob, [a.key], size_bytes=4, deadline=start + 30)
        assert trio.current_time() == start + 30
        async with trio.open_nursery() as nursery:

            async def heal() -> None:
                await trio.sleep(20)
                hub.links.heal()

            nursery.start_soon(heal)
            assert await b.fetch(blob, [a.key], size_bytes=4, deadline=trio.current_time() + 120) == b"late"


async def test_a_crowd_is_met_a_few_at_a_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """All handshakes at once on a busy machine end none in time, and begin again, for ever."""
    hub = MemoryHub(random.Random(1), LinkConditions(latency_s=0.1))
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(hub.open_node(build_identity(n + 1), tmp_path / str(n))) for n in range(9)
        ]
        most: dict[bytes, int] = {}
        for node in nodes:
            watch_dials(node, most)
        await meet(*nodes)
        assert max(most.values()) <= MAX_DIALS


def watch_dials(node: MemoryNode, most: dict[bytes, int]) -> None:
    inner, now = node._transport.dial, [0]

    async def dial(key: bytes, address: str) -> None:
        now[0] += 1
        most[node.key] = max(most.get(node.key, 0), now[0])
        try:
            await inner(key, address)
        finally:
            now[0] -= 1

    node._transport.dial = dial
