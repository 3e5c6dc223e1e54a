"""Keys at whose addresses nobody answers: they delay the others by little, however many they are (N3)."""

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from network_kit import PLAN, RUN
from trio.testing import MockClock

from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.node import MemoryHub, MemoryNode
from psyche.testing.builders import build_identity
from psyche.wire.address_record import sign_address_record

HOLES = 40
ADDRESSES = [f"/memory/hole-{number}" for number in range(8)]  # as many as a record may have
DIAL_S = NetworkLimits().dial_s


@asynccontextmanager
async def open_visitor(hub: MemoryHub, folder: Path, slow_s: float = 0.0) -> AsyncIterator[MemoryNode]:
    """A node that knows many addresses where nobody answers; elsewhere an answer takes `slow_s`."""
    async with hub.open_node(build_identity(1), folder / "visitor") as visitor:
        inner = visitor._transport.dial

        async def dial(key: bytes, address: str) -> None:
            if address in ADDRESSES:
                await trio.sleep_forever()
            await trio.sleep(slow_s)
            await inner(key, address)

        visitor._transport.dial = dial  # type: ignore[method-assign]
        visitor.set_plan(RUN, PLAN)
        yield visitor


def tell(visitor: MemoryNode, peers: Sequence[MemoryNode], members: Sequence[MemoryNode] = (), serial: int = 0) -> None:
    holes = [build_identity(100 + number) for number in range(HOLES)]
    records = [sign_address_record(hole, ADDRESSES, (1 << 40) + serial) for hole in holes]
    keys = {hole.public for hole in holes} | {peer.key for peer in peers} | {visitor.key}
    visitor.set_allowed(frozenset(keys), frozenset(member.key for member in members))
    visitor.set_addresses([*records, *(peer.address_record() for peer in peers)])


@asynccontextmanager
async def open_peer(hub: MemoryHub, folder: Path, visitor: MemoryNode) -> AsyncIterator[MemoryNode]:
    """An honest node that lets the visitor in, and does not know where it is."""
    async with hub.open_node(build_identity(2), folder / "peer") as peer:
        peer.set_plan(RUN, PLAN)
        peer.set_allowed(frozenset({visitor.key}))
        yield peer


async def measure_meeting_s(visitor: MemoryNode, peer: MemoryNode) -> float:
    started = trio.current_time()
    with trio.fail_after(3_600):
        await visitor.wait_for_peers(frozenset({peer.key}))
    return trio.current_time() - started


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(random.Random(1), LinkConditions(latency_s=0.1))


async def test_a_member_is_dialed_before_strangers(autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        tell(visitor, [])
        await trio.sleep(1)
        tell(visitor, [peer], members=[peer])
        assert await measure_meeting_s(visitor, peer) < DIAL_S / 2


async def test_a_stranger_that_comes_last_waits_for_one_short_dial_of_each(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        tell(visitor, [])
        await trio.sleep(1)
        tell(visitor, [peer])
        assert await measure_meeting_s(visitor, peer) < (HOLES / 2 + 1) * DIAL_S / 4


async def test_who_has_been_silent_is_dialed_last_even_at_a_new_address(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        for serial in range(20):
            tell(visitor, [], serial=serial)
            await trio.sleep(10)
        tell(visitor, [peer], serial=20)
        assert await measure_meeting_s(visitor, peer) < DIAL_S / 2


async def test_who_was_here_is_dialed_before_strangers(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        visitor.set_allowed(frozenset({visitor.key, peer.key}))
        visitor.set_addresses([peer.address_record()])
        await measure_meeting_s(visitor, peer)
        tell(visitor, [peer])
        hub.links.cut([visitor.key], [peer.key])
        hub.links.heal()
        await trio.sleep(0.5)
        assert peer.key not in visitor.connected()
        assert await measure_meeting_s(visitor, peer) < DIAL_S


async def test_a_slow_peer_among_the_silent_is_given_more_time_each_time(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with (
        open_visitor(hub, tmp_path, slow_s=0.6 * DIAL_S) as visitor,
        open_peer(hub, tmp_path, visitor) as peer,
    ):
        tell(visitor, [peer])
        assert await measure_meeting_s(visitor, peer) < 1_000


async def test_a_dial_that_nobody_waits_for_has_its_full_time(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with (
        open_visitor(hub, tmp_path, slow_s=0.9 * DIAL_S) as visitor,
        open_peer(hub, tmp_path, visitor) as peer,
    ):
        visitor.set_allowed(frozenset({visitor.key, peer.key}))
        visitor.set_addresses([peer.address_record()])
        assert await measure_meeting_s(visitor, peer) < DIAL_S


async def test_a_peer_that_comes_back_after_days_of_silence_is_dialed(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        inner, back_at = visitor._transport.dial, trio.current_time() + 2 * 86_400

        async def dial(key: bytes, address: str) -> None:
            if trio.current_time() < back_at:
                await trio.sleep_forever()
            await inner(key, address)

        visitor._transport.dial = dial  # type: ignore[method-assign]
        visitor.set_allowed(frozenset({visitor.key, peer.key}))
        visitor.set_addresses([peer.address_record()])
        await trio.sleep_until(back_at)
        assert await measure_meeting_s(visitor, peer) < 2 * NetworkLimits().redial_longest_s


async def test_an_address_that_changes_while_it_waits_for_its_turn_is_not_dialed(
    autojump_clock: MockClock, hub: MemoryHub, tmp_path: Path
) -> None:
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        inner, dialed = visitor._transport.dial, list[str]()
        old = sign_address_record(build_identity(2), ADDRESSES[:1], int(time.time()) + 1_000)

        async def dial(key: bytes, address: str) -> None:
            if key == peer.key:
                dialed.append(address)
            await inner(key, address)

        visitor._transport.dial = dial  # type: ignore[method-assign]
        tell(visitor, [])
        await trio.sleep(1)
        there = peer.address_record
        peer.address_record = lambda: old  # type: ignore[method-assign]
        tell(visitor, [peer])
        await trio.sleep(1)
        assert not dialed, "others are dialed first"
        peer.address_record = there  # type: ignore[method-assign]
        tell(visitor, [peer])
        await measure_meeting_s(visitor, peer)
        assert set(dialed) == set(there().addresses)


async def test_an_address_that_comes_during_a_dial_is_dialed_as_soon_as_that_dial_ends(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """The pause after a failed dial is for the old address; the new one has not failed yet."""
    hub = MemoryHub(random.Random(1), LinkConditions(latency_s=0.001))
    async with open_visitor(hub, tmp_path) as visitor, open_peer(hub, tmp_path, visitor) as peer:
        identity, (address,) = build_identity(2), peer.address_record().addresses
        visitor.set_allowed(frozenset({visitor.key, peer.key}))
        visitor.set_addresses([sign_address_record(identity, ADDRESSES[:1], 1 << 40)])
        await trio.sleep(DIAL_S / 2)
        visitor.set_addresses([sign_address_record(identity, [address], (1 << 40) + 1)])
        pause_s = NetworkLimits().redial_first_s
        assert await measure_meeting_s(visitor, peer) < DIAL_S / 2 + pause_s / 2
