"""A client's link to a chain in a box, over real sockets."""

import logging
from contextlib import aclosing
from typing import Any

import pytest
import trio
from kits.chain.chain_run import ChainRunKit, open_chain_run
from kits.chain.endpoints import Events
from solders.keypair import Keypair

from psyche.backends.solana.cluster import Endpoint
from psyche.backends.solana.interface.authorizer import build_authorization_grantor_update
from psyche.backends.solana.interface.failures import WalletEmpty
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.rpc.run_link import open_link
from psyche.backends.solana.rpc.sender import TransactionSender
from psyche.core.encoding.account import decode_state
from psyche.core.state import messages as msg
from psyche.core.state.errors import UnknownMember
from psyche.errors import BackendError
from psyche.telemetry import types
from psyche.wire.backend import NotAllowed
from psyche.wire.key_file import make_identity


def make_link(kit: ChainRunKit, rpc: Any, wallet: Keypair, authorization: Any = None) -> Any:
    identity = make_identity()
    return identity, open_link(rpc, kit.run, wallet, identity, authorization or kit.authorization)


async def test_refusals_of_the_programs_are_cores_or_sentences() -> None:
    async with open_chain_run() as kit, open_rpc([kit.endpoint]) as rpc:
        identity, opening = make_link(kit, rpc, kit.fund())
        async with opening as link:
            with pytest.raises(UnknownMember):
                await link.send([msg.Withdraw(0, 0)])
            with pytest.raises(BackendError, match="no message of a client"):
                await link.send([msg.Pause()])
        _, opening = make_link(kit, rpc, Keypair())
        async with opening as link:
            with pytest.raises(WalletEmpty, match=r"has 0\.0+ SOL on this cluster"):
                await link.send([msg.Tick(None)])
        identity, opening = make_link(kit, rpc, kit.fund(), authorization=kit.run.instance)
        async with opening as link:
            with pytest.raises(NotAllowed, match="may not join this run yet"):
                await link.send([msg.Join(identity.public, 0)])


async def test_a_wallet_whose_authorization_is_taken_back_waits_until_it_counts_again() -> None:
    async with open_chain_run() as kit, open_rpc([kit.endpoint]) as rpc:
        events, owner = Events(), kit.owner.pubkey()

        async def allow(*, active: bool) -> None:
            change = build_authorization_grantor_update(owner, kit.authorization, active=active)
            await TransactionSender(rpc, kit.owner).send([change])

        await allow(active=False)
        async with kit.open_member(kit.endpoint, sink=events) as (backend, _, identity):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.submit, msg.Join(identity.public))
                while not events.of(types.NotAllowedYet):
                    await trio.sleep(0.05)
                await allow(active=True)
            slots = kit.read().registry.slots
            assert [slot.p2p for slot in slots] == [identity.public]
            assert slots[0].expires_unix
        assert len(events.of(types.NotAllowedYet)) == 1, "said once"


async def test_a_wrong_address_for_subscriptions_is_said_once_and_the_run_is_followed_all_the_same() -> None:
    events = Events()
    async with open_chain_run() as kit:
        wrong = Endpoint(kit.endpoint.http, "ws://secret@127.0.0.1:1/key")
        async with open_rpc([wrong], sink=events) as rpc:
            identity, opening = make_link(kit, rpc, kit.fund())
            async with opening as link:
                await link.send([msg.Join(identity.public, 0)])
                async with aclosing(link.readings()) as readings:
                    async for reading in readings:
                        is_joined = any(s.p2p == identity.public for s in decode_state(reading.raw).registry.slots)
                        if is_joined and len(events.of(types.WatchLost)) > 2:
                            break
    (told,) = events.of(types.WatchRefused)
    assert told.message.startswith("no subscription at 127.0.0.1:1 (")
    assert f"asks {wrong.name} for the run every 1 s instead" in told.message
    assert "check --ws-rpc" in told.message
    assert told.level == logging.WARNING, "it is on the console"
