"""Clients that find each other without a book: addresses on record and given ones, and how the log names them (N3)."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.log import Log, choose
from trio.testing import MockClock

from psyche.client.runtime.bootstrapping import Bootstrapping
from psyche.core.state.state import RunState
from psyche.network.memory.node import MemoryHub, MemoryNode
from psyche.telemetry import types
from psyche.telemetry.types import Wait, WaitStarted
from psyche.testing.builders import build_config, build_hash
from psyche.testing.dummy_trainer import DummyTrainer
from psyche.testing.swarm import open_swarm
from psyche.wire.crypto import Identity
from psyche.wire.peer_address import PeerAddress

LIMIT_S = 600
RUN, PLAN = b"\x07" * 32, b"\x09" * 32
KEY = Identity(build_hash("known")).public
PLACE = f"/ip4/192.0.2.1/tcp/4001/p2p/{KEY.hex()}"


class Forgetful(dict[Any, Any]):
    """A book in which nothing stays."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


@pytest.mark.whole
async def test_clients_of_a_backend_without_a_book_find_each_other_by_an_address_on_record(tmp_path: Path) -> None:
    """Real nodes on loopback: the record names the first of three."""
    config = build_config(init_min_clients=3, min_clients=2, total_steps=4, rounds_per_epoch=4)
    with trio.fail_after(LIMIT_S):
        async with open_swarm(
            3, tmp_path, config=config, over="libp2p", make_trainer=lambda _: DummyTrainer(train_s=0.1)
        ) as swarm:
            swarm.coordinator.book = Forgetful()
            first = swarm.members[0].network
            place = f"{first.address_record().addresses[0]}/p2p/{first.key.hex()}"
            swarm.coordinator.state.bootstrap = [place]
            codes = await swarm.run()
    assert codes == [0, 0, 0]
    assert swarm.coordinator.state.run_state is RunState.FINISHED
    assert {m.digest for m in swarm.members} == {swarm.coordinator.state.certified.digest}
    for member in swarm.members[1:]:
        found = choose((entry.event for entry in member.events.drain()), types.BootstrapConnected)[0]
        assert (found.peer, f"{found.address}/p2p/{found.peer.hex()}") == (first.key, place)


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub(random.Random(1))


@pytest.fixture
async def node(hub: MemoryHub, autojump_clock: MockClock, tmp_path: Path) -> AsyncIterator[MemoryNode]:
    async with hub.open_node(Identity(build_hash("own")), tmp_path / "own") as node:
        node.set_plan(RUN, PLAN)
        yield node


async def look(bootstrapping: Bootstrapping, seconds: float) -> None:
    for _ in range(int(2 * seconds)):
        bootstrapping.follow([])
        await trio.sleep(0.5)


async def test_each_wait_for_a_bootstrap_peer_is_named_and_ends(
    autojump_clock: MockClock, hub: MemoryHub, node: MemoryNode, tmp_path: Path
) -> None:
    log = Log()
    bootstrapping = Bootstrapping(node, [PeerAddress(KEY, "/memory/2")], log, lambda: 1e9 + trio.current_time())
    bootstrapping.start()
    await look(bootstrapping, 1)
    who = f"bootstrap peer {KEY.hex()[:16]} at /memory/2"
    assert [(one.what, one.wait) for one in log.get(WaitStarted)] == [
        (f"{who} to have a place in the run", Wait.BOOTSTRAP_PLACE)
    ]
    node.set_allowed(frozenset({node.key, KEY}))
    await look(bootstrapping, 40)
    waits = log.get(WaitStarted)[1:]
    assert 4 <= len(waits) <= 8, "1, 2, 4, 8 … s lie between two attempts"
    assert {one.wait for one in waits} == {Wait.BOOTSTRAP_DIAL}
    assert all(f"{who}: peer {KEY.hex()[:16]}: nobody answers at /memory/2" in one.what for one in waits)
    async with hub.open_node(Identity(build_hash("known")), tmp_path / "known") as known:
        known.set_plan(RUN, PLAN)
        known.set_allowed(frozenset({node.key, KEY}))
        await look(bootstrapping, 60)
        assert [one.peer for one in log.get(types.BootstrapConnected)] == [KEY]
        ended = log.get(types.WaitEnded)
        assert [one.outcome for one in ended].count(types.WaitOutcome.CONNECTED) <= 1
        assert [one.what for one in ended] == [one.what for one in log.get(WaitStarted)]
        ends = [one for one in ended if one.until is not None]
        assert ends, "every wait for the next attempt has named its end"


@pytest.mark.parametrize("is_allowed", [False, True], ids=["waits for its place", "waits for the next attempt"])
async def test_a_wait_ends_when_the_record_drops_its_address(
    autojump_clock: MockClock, node: MemoryNode, is_allowed: bool
) -> None:
    log = Log()
    bootstrapping = Bootstrapping(node, [], log, trio.current_time)
    bootstrapping.start()
    recorded = [PLACE]
    node.set_allowed(frozenset({node.key, KEY} if is_allowed else {node.key}))
    bootstrapping.follow(recorded)
    await trio.sleep(0.5)
    bootstrapping.follow(recorded)
    begun = [one.what for one in log.get(WaitStarted)]
    assert begun, "the test waits for something"
    bootstrapping.follow([])
    assert [one.what for one in log.get(types.WaitEnded)] == begun
    assert log.get(types.WaitEnded)[-1].outcome is types.WaitOutcome.OFF_RECORD
    bootstrapping.follow(recorded)
    await trio.sleep(0.5)
    bootstrapping.follow(recorded)
    assert len([one.what for one in log.get(WaitStarted)]) > len(begun), "what comes back is waited for anew"


async def test_a_peer_that_the_record_drops_and_names_again_is_told_of_as_connected_again(
    autojump_clock: MockClock, hub: MemoryHub, node: MemoryNode, tmp_path: Path
) -> None:
    log = Log()
    async with hub.open_node(Identity(build_hash("known")), tmp_path / "known") as known:
        for one in (node, known):
            one.set_plan(RUN, PLAN)
            one.set_allowed(frozenset({node.key, KEY}))
        known.set_addresses([node.address_record()])
        await known.wait_for_peers(frozenset({node.key}))
        await node.wait_for_peers(frozenset({KEY}))
        bootstrapping = Bootstrapping(node, [], log, trio.current_time)
        for recorded in ([PLACE], [], [PLACE]):
            bootstrapping.follow(recorded)
    assert [one.peer for one in log.get(types.BootstrapConnected)] == [KEY, KEY]


async def test_what_a_person_names_wins_over_the_record_and_what_cannot_be_dialed_is_said(
    autojump_clock: MockClock, node: MemoryNode
) -> None:
    log = Log()
    bootstrapping = Bootstrapping(node, [PeerAddress(KEY, "/memory/7")], log, trio.current_time)
    bootstrapping.start()
    other = Identity(build_hash("other")).public
    at = "/ip4/192.0.2.1/tcp/4001"
    bootstrapping.follow([f"{at}/p2p/{KEY.hex()}", f"{at}/p2p/{other.hex()}", at, f"{at}/p2p/{node.key.hex()}"])
    assert [(peer.key, peer.address) for peer in node.bootstrap()] == [(KEY, "/memory/7"), (other, at)]
    (error,) = log.get(types.Error)
    assert error.message.startswith(f"the record's bootstrap address '{at}' is not dialed: names no key")
    bootstrapping.follow([])
    assert [peer.key for peer in node.bootstrap()] == [KEY], "the owner has taken them back"
