"""Accounts with the right bytes under the wrong owner, and of the wrong kind, on a chain over real sockets."""

import re
from contextlib import aclosing

import pytest
import trio
from kits.chain.chain_run import ChainRunKit, open_chain_run
from kits.chain.endpoints import Events
from solders.account import Account
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import AUTHORIZATION, INSTANCE, RUN_STATE, AccountKind
from psyche.backends.solana.interface.addresses import (
    COORDINATOR,
    EVERYBODY,
    TREASURER,
    get_authorization_address,
    get_instance_address,
)
from psyche.backends.solana.joining import find_authorization
from psyche.backends.solana.lookup import find_instance, find_run, list_instances
from psyche.backends.solana.rpc.client import open_rpc
from psyche.backends.solana.rpc.run_link import open_link
from psyche.backends.solana.session import ChainSession
from psyche.errors import BackendError, WireError
from psyche.telemetry import types
from psyche.wire.key_file import make_identity


def replace(kit: ChainRunKit, key: Pubkey, *, owner: Pubkey | None = None, data: bytes | None = None) -> None:
    """Lay an account anew, under another owner or with other bytes."""
    old = kit.chain.bank.get_account(key)
    assert old is not None
    new = Account(old.lamports, bytes(old.data) if data is None else data, owner or old.owner)
    kit.chain.bank.put_account(key, new)


def describe_owner(key: Pubkey, owner: Pubkey, kind: AccountKind) -> str:
    return f"account {key}: belongs to {owner}, and a {kind.name} must belong to {kind.owner}"


async def read_all(kit: ChainRunKit) -> None:
    """Read a run as owners and members do."""
    session = ChainSession(kit.rpc, kit.owner, lambda _quote: None)
    found = await find_run(session, "run")
    assert found.state == kit.read()
    assert [one.run_id for one in await list_instances(session)] == ["run"]
    assert await find_authorization(session, kit.owner.pubkey(), EVERYBODY) is not None


async def test_the_bytes_of_a_run_under_another_owner_are_refused_by_account_and_owner() -> None:
    async with open_chain_run() as kit:
        await read_all(kit)
        authorization = kit.authorization
        for key, kind in ((kit.run.account, RUN_STATE), (kit.run.instance, INSTANCE), (authorization, AUTHORIZATION)):
            stranger = Pubkey.new_unique()
            replace(kit, key, owner=stranger)
            with pytest.raises((BackendError, WireError), match=re.escape(describe_owner(key, stranger, kind))):
                await read_all(kit)
            replace(kit, key, owner=kind.owner)
        replace(kit, authorization, owner=COORDINATOR)
        with pytest.raises(WireError, match="must belong to PsycheAuthorizer"):
            await read_all(kit)


async def test_an_account_of_another_kind_is_refused_by_its_first_bytes() -> None:
    async with open_chain_run() as kit:
        account = kit.chain.bank.get_account(kit.run.instance)
        assert account is not None
        replace(kit, kit.run.account, data=bytes(account.data))
        with pytest.raises(BackendError, match=r"run 'run': account .* begins with 9c0999.*, and a CoordinatorAccount"):
            await read_all(kit)


async def test_an_address_that_only_holds_lamports_has_no_account() -> None:
    async with open_chain_run() as kit:
        session = ChainSession(kit.rpc, kit.owner, lambda _quote: None)
        stranger = Pubkey.new_unique()
        assert await find_instance(kit.rpc, "other") is None
        kit.chain.bank.airdrop(get_instance_address("other"), 10**9)
        kit.chain.bank.airdrop(get_authorization_address(stranger, EVERYBODY), 10**9)
        assert await find_instance(kit.rpc, "other") is None
        assert await find_authorization(session, stranger, EVERYBODY) is None


async def test_a_client_is_shown_nothing_of_an_account_that_the_program_does_not_own() -> None:
    events = Events()
    async with open_chain_run() as kit, open_rpc([kit.endpoint], sink=events) as rpc:
        replace(kit, kit.run.account, owner=TREASURER)
        wallet, identity = kit.fund(), make_identity()
        async with (
            open_link(rpc, kit.run, wallet, identity, kit.authorization) as link,
            aclosing(link.readings()) as readings,
        ):
            with trio.fail_after(120):
                while not events.of(types.WatchLost):
                    await trio.sleep(0.05)
            assert events.of(types.WatchLost)[0].reason == describe_owner(kit.run.account, TREASURER, RUN_STATE)
            replace(kit, kit.run.account, owner=COORDINATOR)
            with trio.fail_after(120):
                assert (await anext(readings)).raw
