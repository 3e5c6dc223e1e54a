"""Nodes without the backend's address book: one bootstrap address, and what peers tell each other (N1 to N4)."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
import pytest
import trio
from kits.tier import few
from msgspec.structs import replace
from network_kit import PLAN, RUN, OpenNode, until_met

from psyche.network.addresses.table import MAX_RECORDS, decode_address_record, encode_address_record
from psyche.network.base import BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.sync import encode_sync_reply
from psyche.testing.builders import build_identity
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.peer_address import PeerAddress
from psyche.wire.ports import SyncReply, SyncRequest

QUICK = NetworkLimits(hello_s=2.0, redial_first_s=0.2, redial_longest_s=1.0, wanted_after_s=0.1)
LIMIT_S = 120.0


def get_address(node: BaseNode) -> PeerAddress:
    return PeerAddress(node.key, node.address_record().addresses[0])


@asynccontextmanager
async def open_bookless(open_any: OpenNode, count: int, *more: bytes) -> AsyncIterator[list[BaseNode]]:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(open_any(n + 1, QUICK)) for n in range(count)]
        for node in nodes:
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset({n.key for n in nodes} | {*more}))
        yield nodes


async def test_a_bootstrap_peer_is_not_dialed_before_it_has_a_place_in_the_run(open_any: OpenNode) -> None:
    async with open_bookless(open_any, 2) as (known, visitor):
        visitor.set_allowed(frozenset({visitor.key}))
        visitor.set_bootstrap([get_address(known)])
        await trio.sleep(0.5)
        (stands,) = visitor.bootstrap()
        assert (stands.is_allowed, stands.is_connected, stands.failure) == (False, False, "")
        assert visitor.peers.get(known.key) is None
        visitor.set_allowed(frozenset({visitor.key, known.key}))
        with trio.fail_after(LIMIT_S):
            await visitor.wait_for_peers(frozenset({known.key}))
        assert visitor.bootstrap()[0].is_connected


async def test_a_bootstrap_address_where_nobody_answers_is_tried_again_and_says_why(open_any: OpenNode) -> None:
    async with AsyncExitStack() as stack:
        (visitor,) = await stack.enter_async_context(open_bookless(open_any, 1, build_identity(9).public))
        async with open_any(9, QUICK) as gone:
            lost = get_address(gone)
        visitor.set_bootstrap([lost])
        with trio.fail_after(LIMIT_S):
            while not visitor.bootstrap()[0].failure:
                await trio.sleep(0.02)
        first = visitor.bootstrap()[0].next_dial_at
        with trio.fail_after(LIMIT_S):
            while visitor.bootstrap()[0].next_dial_at == first:
                await trio.sleep(0.02)


async def test_an_address_of_the_book_that_is_wrong_does_not_hide_the_bootstrap_address(open_any: OpenNode) -> None:
    """N3: the named one is dialed first."""
    async with open_bookless(open_any, 2) as (known, visitor):
        right = get_address(known)
        wrong = "/ip4/127.0.0.1/tcp/1" if right.address.startswith("/ip4") else "/memory/999"
        visitor.set_addresses([sign_address_record(build_identity(1), [wrong], 1 << 40)])
        visitor.set_bootstrap([right])
        with trio.fail_after(LIMIT_S):
            await visitor.wait_for_peers(frozenset({known.key}))


# --- what peers say


async def ask(node: BaseNode, peer: BaseNode, key: bytes = b"") -> list[AddressRecord]:
    reply = await node.ask(peer.key, SyncRequest("addresses", key=key), timeout_s=LIMIT_S)
    return [decode_address_record(raw) for raw in reply.items]


async def test_at_most_32_records_are_told_from_the_key_asked_for_on(open_any: OpenNode) -> None:
    """N1."""
    others = [build_identity(n) for n in range(100, 150)]
    async with open_bookless(open_any, 2, *(i.public for i in others)) as (known, visitor):
        known.set_addresses([sign_address_record(i, ["/ip4/192.0.2.1/tcp/1"], 1 << 40) for i in others])
        visitor.set_bootstrap([get_address(known)])
        await until_met(known, visitor)
        keys = sorted([known.key, visitor.key, *(i.public for i in others)])
        told = [record.p2p for record in await ask(visitor, known, keys[30])]
        assert told == (keys[30:] + keys[:30])[:MAX_RECORDS]


async def test_records_that_have_expired_or_of_keys_without_a_place_are_not_told(open_any: OpenNode) -> None:
    expired, foreign = build_identity(100), build_identity(101)
    async with open_bookless(open_any, 2, expired.public) as (known, visitor):
        records = [sign_address_record(expired, ["/ip4/192.0.2.1/tcp/1"], 1_000)]
        known.set_addresses([*records, sign_address_record(foreign, ["/ip4/192.0.2.1/tcp/1"], 1 << 40)])
        visitor.set_bootstrap([get_address(known)])
        await until_met(known, visitor)
        assert {record.p2p for record in await ask(visitor, known)} == {known.key, visitor.key}


# --- a bootstrap peer that lies


async def play_liar(open_any: OpenNode, lie: list[bytes], wanted: bytes) -> tuple[list[bool], frozenset[bytes], bool]:
    """A visitor asks a liar, then is told of an honest node: who was learned, who was met, is the liar shunned."""
    async with open_bookless(open_any, 4, wanted) as (liar, honest, third, visitor):

        async def answer(_key: bytes, request: SyncRequest) -> bytes:
            if request.kind == "addresses":
                asked.set()
            return msgspec.msgpack.encode([True, lie])

        asked = trio.Event()
        liar.questions._answer = answer  # type: ignore[method-assign]
        third.set_bootstrap([get_address(honest)])
        await until_met(honest, third)
        visitor.set_bootstrap([get_address(liar)])
        with trio.fail_after(LIMIT_S):
            await visitor.wait_for_peers(frozenset({liar.key}))
            await asked.wait()
        await trio.sleep(0.5)
        table = visitor.peers._addresses
        learned = [table.get_record(key) is not None for key in (wanted, build_identity(101).public)]
        is_shunned = liar.key in visitor._exchange._liars
        visitor.set_bootstrap([get_address(liar), get_address(honest)])
        await until_met(honest, third, visitor)  # and the honest way still leads to everybody
        return learned, visitor.connected(), is_shunned


def build_far(number: int, expires_unix: int) -> bytes:
    return encode_address_record(sign_address_record(build_identity(number), ["/ip4/127.0.0.1/tcp/1"], expires_unix))


def build_lies() -> dict[str, tuple[list[bytes], bool]]:
    """What the liar says of key 100, which has a place, and whether no honest node would say it."""
    import time

    soon = int(time.time()) + 3_600
    good = decode_address_record(build_far(100, soon))
    return {
        "stale": ([build_far(100, soon - 7_200)], False),
        "of the far future": ([build_far(100, 1 << 50)], False),
        "of foreign keys": ([build_far(n, soon) for n in range(101, 131)], False),
        "badly signed": ([encode_address_record(replace(good, addresses=("/ip4/192.0.2.66/tcp/1",)))], True),
        "with a wrong key": ([encode_address_record(replace(good, p2p=b"short"))], True),
        "too many addresses": ([encode_address_record(replace(good, addresses=("/x",) * 9))], True),
        "33 records": ([build_far(100, soon)] * 33, True),
        "10,000 records": ([build_far(100, soon)] * 10_000, True),
        "rubbish": ([b"\xc1rubbish"], True),
        "long": ([bytes(2_000)], True),
    }


@pytest.mark.parametrize(
    ("open_any", "name"),
    [("libp2p", "10,000 records"), *(("memory", name) for name in few([*build_lies()], 3))],
    indirect=["open_any"],
)
async def test_what_a_lying_bootstrap_peer_says_is_not_kept(open_any: OpenNode, name: str) -> None:
    """N2."""
    lie, is_plain = build_lies()[name]
    learned, met, is_shunned = await play_liar(open_any, lie, build_identity(100).public)
    assert learned == [False, False]
    assert len(met) == 3
    assert is_shunned == is_plain


async def test_the_newest_record_of_a_key_wins_whoever_shows_it_first(open_any: OpenNode) -> None:
    """N2."""
    import time

    soon = int(time.time()) + 3_600
    older, newer = (sign_address_record(build_identity(100), [f"/ip4/192.0.2.{n}/tcp/1"], soon + n) for n in (1, 2))
    async with open_bookless(open_any, 1, older.p2p) as (node,):
        assert node.peers.learn_address(older)
        assert node.peers.learn_address(newer)
        assert not node.peers.learn_address(older)
        assert node.peers._addresses.get_addresses(older.p2p) == newer.addresses
        assert len(encode_sync_reply(SyncReply(True, (encode_address_record(newer),) * MAX_RECORDS))) < 40_000


async def test_a_backend_with_a_book_is_believed_and_peers_are_not_asked(open_any: OpenNode) -> None:
    async with open_bookless(open_any, 2, build_identity(100).public) as (known, visitor):
        visitor.set_addresses([known.address_record()])
        with trio.fail_after(LIMIT_S):
            await visitor.wait_for_peers(frozenset({known.key}))
        await trio.sleep(0.3)
        assert visitor.peers.get_wanted() == frozenset()
