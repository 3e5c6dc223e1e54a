"""Keys at whose addresses nobody answers: they delay the others by little, however many they are (N3)."""

import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from network_kit import PLAN, RUN, set_link
from trio.testing import MockClock

from psyche.network.limits import NetworkLimits
from psyche.network.memory.line import LinkConditions
from psyche.network.memory.node import MemoryHub, MemoryNode
from psyche.testing.builders import build_identity
from psyche.wire.address_record import AddressRecord, sign_address_record

HOLES = 40
ADDRESSES = [f"/memory/hole-{number}" for number in range(8)]  # as many as a record may have
LIMITS = NetworkLimits()
DIAL_S = LIMITS.dial_s
FAR_UNIX = 1 << 40


@dataclass
class Meeting:
    """A visitor, and an honest peer that lets it in and does not know where it is.

    Nobody answers at `ADDRESSES`, nor anywhere before `back_at`; elsewhere an answer takes `slow_s`.
    """

    hub: MemoryHub
    visitor: MemoryNode
    peer: MemoryNode
    slow_s: float = 0.0
    back_at: float = 0.0

    def __post_init__(self) -> None:
        self.dialed: list[str] = []  # addresses of the peer
        self._dial = self.visitor._transport.dial
        self.visitor._transport.dial = self.dial  # type: ignore[method-assign]
        for node in (self.visitor, self.peer):
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset({self.visitor.key, self.peer.key}))

    async def dial(self, key: bytes, address: str) -> None:
        if key == self.peer.key:
            self.dialed.append(address)
        if address in ADDRESSES or trio.current_time() < self.back_at:
            await trio.sleep_forever()
        await trio.sleep(self.slow_s)
        await self._dial(key, address)

    def tell(self, *records: AddressRecord, is_member: bool = False, serial: int = 0) -> None:
        """Tell the visitor of 40 keys where nobody answers, and of these records of the peer."""
        holes = [build_identity(100 + number) for number in range(HOLES)]
        keys = {hole.public for hole in holes} | {record.p2p for record in records} | {self.visitor.key}
        self.visitor.set_allowed(frozenset(keys), frozenset({self.peer.key} if is_member else ()))
        lost = [sign_address_record(hole, ADDRESSES, FAR_UNIX + serial) for hole in holes]
        self.visitor.set_addresses([*lost, *records])

    async def measure_s(self) -> float:
        started = trio.current_time()
        with trio.fail_after(3_600):
            await self.visitor.wait_for_peers(frozenset({self.peer.key}))
        return trio.current_time() - started


@pytest.fixture
async def meeting(autojump_clock: MockClock, tmp_path: Path) -> AsyncIterator[Meeting]:
    hub = MemoryHub(random.Random(1), LinkConditions(latency_s=0.1))
    async with (
        hub.open_node(build_identity(1), tmp_path / "visitor") as visitor,
        hub.open_node(build_identity(2), tmp_path / "peer") as peer,
    ):
        yield Meeting(hub, visitor, peer)


@pytest.mark.parametrize(
    ("is_member", "most_s"),
    [(True, DIAL_S / 2), (False, (HOLES / 2 + 1) * DIAL_S / 4)],
    ids=["a member goes before strangers", "a stranger waits for one short dial of each"],
)
async def test_who_comes_last_waits_by_its_standing(meeting: Meeting, is_member: bool, most_s: float) -> None:
    meeting.tell()
    await trio.sleep(1)
    meeting.tell(meeting.peer.address_record(), is_member=is_member)
    assert await meeting.measure_s() < most_s


async def test_who_has_been_silent_is_dialed_last_even_at_a_new_address(meeting: Meeting) -> None:
    for serial in range(20):
        meeting.tell(serial=serial)
        await trio.sleep(10)
    meeting.tell(meeting.peer.address_record(), serial=20)
    assert await meeting.measure_s() < DIAL_S / 2


async def test_who_was_here_is_dialed_before_strangers(meeting: Meeting) -> None:
    visitor, peer = meeting.visitor, meeting.peer
    visitor.set_addresses([peer.address_record()])
    await meeting.measure_s()
    meeting.tell(peer.address_record())
    meeting.hub.links.cut([visitor.key], [peer.key])
    meeting.hub.links.heal()
    await trio.sleep(0.5)
    assert peer.key not in visitor.connected()
    assert await meeting.measure_s() < DIAL_S


async def test_a_slow_peer_among_the_silent_is_given_more_time_each_time(meeting: Meeting) -> None:
    meeting.slow_s = 0.6 * DIAL_S
    meeting.tell(meeting.peer.address_record())
    assert await meeting.measure_s() < 1_000


async def test_a_dial_that_nobody_waits_for_has_its_full_time(meeting: Meeting) -> None:
    meeting.slow_s = 0.9 * DIAL_S
    meeting.visitor.set_addresses([meeting.peer.address_record()])
    assert await meeting.measure_s() < DIAL_S


async def test_a_peer_that_comes_back_after_days_of_silence_is_dialed(meeting: Meeting) -> None:
    meeting.back_at = trio.current_time() + 2 * 86_400
    meeting.visitor.set_addresses([meeting.peer.address_record()])
    await trio.sleep_until(meeting.back_at)
    assert await meeting.measure_s() < 2 * LIMITS.redial_longest_s


async def test_an_address_that_changes_while_it_waits_for_its_turn_is_not_dialed(meeting: Meeting) -> None:
    meeting.tell()
    await trio.sleep(1)
    meeting.tell(sign_address_record(build_identity(2), ADDRESSES[:1], int(time.time()) + 1_000))
    await trio.sleep(1)
    assert not meeting.dialed, "others are dialed first"
    there = meeting.peer.address_record()
    meeting.tell(there)
    await meeting.measure_s()
    assert set(meeting.dialed) == set(there.addresses)


async def test_an_address_that_comes_during_a_dial_is_dialed_as_soon_as_that_dial_ends(meeting: Meeting) -> None:
    """The pause after a failed dial is for the old address; the new one has not failed yet."""
    identity, addresses = build_identity(2), meeting.peer.address_record().addresses
    set_link(meeting.hub.links, meeting.visitor.key, meeting.peer.key, LinkConditions(latency_s=0.001))
    meeting.visitor.set_addresses([sign_address_record(identity, ADDRESSES[:1], FAR_UNIX)])
    await trio.sleep(DIAL_S / 2)
    meeting.visitor.set_addresses([sign_address_record(identity, addresses, FAR_UNIX + 1)])
    assert await meeting.measure_s() < DIAL_S / 2 + LIMITS.redial_first_s / 2
