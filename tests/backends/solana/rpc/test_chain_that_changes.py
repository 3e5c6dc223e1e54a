"""Members of a chain that is restored from an older ledger, or replaced by another one: over real sockets."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from kits.chain.chain_run import ChainRunKit, create_run
from kits.chain.endpoints import Events

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.member import following
from psyche.backends.solana.member.backend import SolanaBackend
from psyche.backends.solana.rpc.client import open_rpc
from psyche.core.state import messages as msg
from psyche.core.state.state import Coordinator
from psyche.errors import ChainReplaced
from psyche.localchain.chain import LocalChain, open_local_chain
from psyche.localchain.ledger import FILE, ChainFile
from psyche.telemetry import types
from psyche.testing.builders import build_config
from psyche.wire.crypto import Identity
from psyche.wire.nursery import open_plain_nursery

SLOT_MS = 20
PATIENCE_S = 60.0  # only a broken client takes it


class RestartedChain:
    """A local chain in a folder, at the same address in each of its lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0

    @asynccontextmanager
    async def live(self) -> AsyncIterator[LocalChain]:
        async with open_local_chain(slot_ms=SLOT_MS, state=self.folder, port=self.port) as chain:
            self.port = urlsplit(chain.http).port or 0
            yield chain


Member = tuple[SolanaBackend, Identity]


async def run_member(kit: ChainRunKit, events: Events, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
    async with kit.open_member(kit.endpoint, sink=events) as (backend, _, identity):
        task_status.started((backend, identity))
        await trio.sleep_forever()


async def see(backend: SolanaBackend, wanted: Callable[[Coordinator], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        async with aclosing(backend.states()) as states:
            async for state in states:
                if wanted(state):
                    return


def has_joined(identity: Identity) -> Callable[[Coordinator], bool]:
    return lambda state: any(slot.p2p == identity.public for slot in state.registry.slots)


async def test_members_go_on_with_a_chain_that_is_killed_and_restored_from_an_older_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FORK_S", 1.0)
    place, all_events = RestartedChain(tmp_path / "chain"), [Events(), Events()]

    async def join_all(members: list[Member]) -> None:
        for backend, identity in members:
            with trio.fail_after(PATIENCE_S):
                await backend.submit(msg.Join(identity.public))
            for watcher, _ in members:
                await see(watcher, has_joined(identity))

    async with open_plain_nursery() as nursery:
        async with place.live() as chain, create_run(chain, build_config(init_min_clients=3)) as kit:
            members = [await nursery.start(run_member, kit, events) for events in all_events]
            ChainFile(place.folder).save(chain.bank)
            older = (place.folder / FILE).read_bytes()
            await join_all(members)
        (place.folder / FILE).write_bytes(older)
        async with place.live():
            for backend, _ in members:
                await see(backend, lambda state: not state.registry.slots)
            await join_all(members)
        nursery.cancel_scope.cancel()
    for events in all_events:
        told = [event.reason for event in events.of(types.StateMismatch)]
        assert sum(text.startswith(f"the chain at 127.0.0.1:{place.port} went back") for text in told) == 1, told
        assert not any("two endpoints" in text for text in told)


async def test_a_chain_that_is_replaced_by_another_one_is_named_with_both_hashes(tmp_path: Path) -> None:
    place, events, hashes = RestartedChain(tmp_path / "chain"), Events(), list[str]()

    async def follow() -> None:
        async with open_plain_nursery() as nursery:
            async with place.live() as chain, create_run(chain) as kit:
                backend, _ = await nursery.start(run_member, kit, events)
                await see(backend, lambda _state: True)
                hashes.append(await kit.rpc.get_genesis_hash())
            (place.folder / FILE).unlink()
            async with place.live() as chain, open_rpc([Endpoint(chain.http, chain.ws)]) as rpc:
                hashes.append(await rpc.get_genesis_hash())
                await trio.sleep(PATIENCE_S)

    with pytest.raises(ChainReplaced) as caught:
        await follow()
    assert caught.value.exit_code == 12
    assert f"the chain at 127.0.0.1:{place.port} was replaced" in str(caught.value)
    assert f"its genesis hash is {hashes[1]}, and was {hashes[0]}" in str(caught.value)
    assert len(events.of(types.StateMismatch)) == 1
