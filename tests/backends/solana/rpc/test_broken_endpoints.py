"""A client's backend over real sockets whose first endpoint breaks and whose second is 20 slots behind (F12).

Whatever breaks: each message has its effect once, and each state that is shown was on record, in its order.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from kits.chain.chain_run import ChainRunKit, create_run
from kits.chain.endpoints import Events
from kits.chain.faulty_endpoints import FaultyEndpoint, open_faulty, open_stale
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.member.backend import SolanaBackend
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.state import Coordinator
from psyche.localchain.chain import open_local_chain
from psyche.telemetry import types

SLOT_MS = 50
LAG_SLOTS = 20
FAULTS = ["dead", "stall", "busy", "cut", "late"]


@dataclass
class Scene:
    """A client, and what was really on record."""

    kit: ChainRunKit
    first: FaultyEndpoint
    backend: SolanaBackend
    events: Events
    wallet: Pubkey
    p2p: bytes
    recorded: dict[int, bytes] = field(default_factory=dict)
    shown: list[Coordinator] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def note(self) -> None:
        account = self.kit.chain.bank.get_account(self.kit.run.account)
        assert account is not None
        raw = bytes(account.data)
        self.recorded[decode_state(raw).nonce] = raw

    async def follow(self) -> None:
        async with aclosing(self.backend.states()) as states:
            async for state in states:
                self.shown.append(state)
                self.changed.set()
                self.changed = trio.Event()

    async def wait_for_place(self, *, taken: bool) -> None:
        """Until the client's own view says that it has joined, or has not."""
        with trio.fail_after(60):
            while not self.shown or taken != any(s.p2p == self.p2p for s in self.shown[-1].registry.slots if s.active):
                await self.changed.wait()

    def count_effects(self) -> int:
        """The transactions of this wallet that the coordinator has carried out."""
        bank = self.kit.chain.bank
        records = bank.history._records.values()
        return sum(
            record.keys[0] == self.wallet and COORDINATOR in record.keys and record.status.error is None
            for record in records
        )


@asynccontextmanager
async def open_scene() -> AsyncGenerator[Scene]:
    async with (
        open_local_chain(slot_ms=SLOT_MS) as chain,
        open_stale(chain, LAG_SLOTS) as second,
        create_run(chain) as kit,
        open_faulty(chain) as first,
    ):
        events = Events()
        async with (
            kit.open_member(first.endpoint, second, sink=events) as (backend, wallet, identity),
            trio.open_nursery() as nursery,
        ):
            scene = Scene(kit, first, backend, events, wallet, identity.public)
            scene.note()
            chain.bank.on_block.append(lambda _block: scene.note())
            nursery.start_soon(scene.follow)
            yield scene
            nursery.cancel_scope.cancel()


@pytest.mark.e2e
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_message_has_its_effect_once_and_no_stale_state_is_shown(fault: str) -> None:
    async with open_scene() as scene:
        await scene.backend.submit(msg.Join(scene.p2p))
        await scene.wait_for_place(taken=True)
        scene.first.set_fault(fault)
        with trio.fail_after(60):
            await scene.backend.submit(msg.Withdraw(0, 0))
        await scene.wait_for_place(taken=False)
        with trio.fail_after(60):
            await scene.backend.submit(msg.Join(scene.p2p))
        await scene.wait_for_place(taken=True)
        scene.first.set_fault("")
        await trio.sleep(LAG_SLOTS * SLOT_MS / 1_000)  # for copies that come late
        assert scene.count_effects() == 3
    nonces = [state.nonce for state in scene.shown]
    assert nonces == sorted(set(nonces))
    for state in scene.shown:
        assert encode_state(state) == scene.recorded[state.nonce]
    if fault != "late":  # its answers are late, not lost
        assert {event.endpoint for event in scene.events.of(types.WatchLost) + scene.events.of(types.EndpointLost)}
