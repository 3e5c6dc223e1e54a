"""A client over real sockets one of whose two endpoints breaks: the simulator plays the rest (F12)."""

import pytest
import trio
from kits.chain.chain_run import open_chain_run
from kits.chain.endpoints import Events
from kits.chain.faulty_endpoints import open_faulty
from kits.tier import few

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.core.state import messages as msg
from psyche.telemetry import types


@pytest.mark.e2e
@pytest.mark.parametrize("fault", few(["cut", "late", "dead", "stall", "busy"], 1))
async def test_messages_have_their_effect_once_whatever_breaks(fault: str) -> None:
    events = Events()
    async with open_chain_run() as kit, open_faulty(kit.chain) as first:
        async with kit.open_member(first.endpoint, kit.endpoint, sink=events) as (backend, wallet, identity):
            await backend.submit(msg.Join(identity.public))
            first.set_fault(fault)
            with trio.fail_after(60):
                await backend.submit(msg.Withdraw(0, 0))
                await backend.submit(msg.Join(identity.public))
            first.set_fault("")
            await trio.sleep(1.0)  # for copies that come late
        landed = [record for record in kit.chain.bank.history.find(wallet) if COORDINATOR in record.keys]
        assert [record.status.error for record in landed] == [None] * 3
        assert [slot.p2p for slot in kit.read().registry.slots if slot.active] == [identity.public]
    if fault != "late":  # its answers are late, not lost
        assert events.of(types.WatchLost) + events.of(types.EndpointLost)
