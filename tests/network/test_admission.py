"""Hello: who is let in, who is told why not, and who is closed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
from network_kit import PLAN, RUN, OpenGroup, OpenNode, introduce, meet, until_met

from psyche.errors import NetworkError
from psyche.network.base import BaseNode
from psyche.network.limits import NetworkLimits
from psyche.network.streams import BLOB, HELLO, SYNC, StreamError, read_exactly
from psyche.testing.builders import build_identity
from psyche.wire.address_record import AddressRecord, sign_address_record
from psyche.wire.ports import SyncReply, SyncRequest

OTHER = b"\x0a" * 32
QUICK = NetworkLimits(redial_first_s=0.2, redial_longest_s=1.0)
IMPATIENT = replace(QUICK, hello_s=0.5)


async def until_refused(node: BaseNode, key: bytes, reason: str) -> None:
    with trio.fail_after(120):
        while reason not in node.refusals().get(key, ""):
            await trio.sleep(0.02)
    assert key not in node.connected()


@asynccontextmanager
async def open_two(open_any: OpenNode, limits: NetworkLimits = QUICK) -> AsyncIterator[tuple[BaseNode, BaseNode]]:
    async with open_any(1, limits) as first, open_any(2, limits) as second:
        yield first, second


@pytest.mark.parametrize(
    ("run", "plan", "reason"),
    [(OTHER, PLAN, "another run"), (RUN, OTHER, "another transform plan")],
    ids=["run", "plan"],
)
async def test_a_peer_of_another_run_or_plan_is_refused_with_the_reason(
    open_any: OpenNode, run: bytes, plan: bytes, reason: str
) -> None:
    async with open_two(open_any) as (a, b):
        introduce([a, b])
        b.set_plan(run, plan)
        await until_refused(a, b.key, reason)
        assert a.connected() == frozenset()


@pytest.mark.parametrize("plan", [PLAN, OTHER])
async def test_a_joiner_that_does_not_know_the_plan_yet_is_let_in_until_it_has_another(
    open_any: OpenNode, plan: bytes
) -> None:
    async with open_two(open_any) as (a, b):
        introduce([a, b], plans=[PLAN, bytes(32)])
        await until_met(a, b)
        b.set_plan(RUN, plan)
        if plan == OTHER:
            await until_refused(b, a.key, "another transform plan")
        await trio.sleep(0.1)
        assert (b.key in a.connected()) == (plan == PLAN)


async def test_that_a_newcomer_must_wait_for_its_place_is_no_news_on_either_side(
    open_any: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "psyche.network")
    async with open_two(open_any) as (member, newcomer):
        introduce([member, newcomer])
        member.set_allowed(frozenset({member.key}))
        await until_refused(newcomer, member.key, "no place in the run yet")
        assert "is closed" not in caplog.text
        newcomer.set_plan(OTHER, PLAN)
        member.set_allowed(frozenset({member.key, newcomer.key}))
        await until_refused(newcomer, member.key, "another run")
        assert "is closed: another run" in caplog.text


async def test_who_drops_off_the_allow_list_is_closed_and_comes_back_with_it(open_group: OpenGroup) -> None:
    async with open_group(3, QUICK) as (a, b, c):
        a.set_allowed(frozenset({a.key, c.key}))
        with trio.fail_after(120):
            while a.key in b.connected():
                await b.peers.changed.wait()
        assert a.connected() == {c.key}
        assert b.key in c.connected(), "others go on"
        await b.publish(b"to those who listen")
        a.set_allowed(frozenset({a.key, b.key, c.key}))
        with trio.fail_after(120):
            await a.wait_for_peers(frozenset({b.key, c.key}))
            await b.wait_for_peers(frozenset({a.key, c.key}))


async def test_gossip_of_who_is_not_allowed_is_not_delivered(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b):
        await b.publish(b"before")
        with trio.fail_after(120):
            assert await a.messages().receive() == (b.key, b"before")
        a._inbox.allowed = frozenset()  # its connection still stands: the list alone decides
        refused = a.statistics().gossip_refused
        await b.publish(b"after")
        with trio.fail_after(120):
            while a.statistics().gossip_refused == refused:
                await trio.sleep(0.01)
        with pytest.raises(trio.WouldBlock):
            a.messages().receive_nowait()


async def test_a_peer_that_says_no_hello_is_closed_in_time(open_any: OpenNode) -> None:
    async with open_two(open_any, IMPATIENT) as (a, silent):
        introduce([a, silent])
        silent.set_addresses([])
        a.set_addresses([])

        async def say_nothing(*_args: object) -> None:
            await trio.sleep_forever()

        silent.peers._offer_hello = say_nothing  # type: ignore[method-assign]
        silent.peers._watch_hello = say_nothing  # type: ignore[method-assign]
        await silent._transport.dial(a.key, a.address_record().addresses[0])
        await until_refused(a, silent.key, "no hello within 0.5 s")
        with trio.fail_after(120):
            while silent.peers.get(a.key) is not None:
                await trio.sleep(0.02)


async def test_a_peer_that_is_not_admitted_is_served_nothing(open_any: OpenNode) -> None:
    async with open_two(open_any, NetworkLimits(hello_s=1.0)) as (a, stranger):
        introduce([a, stranger])
        for node in (a, stranger):
            node.set_addresses([])
        blob = await a.provide(b"secret", expires=None)

        async def say_nothing(*_args: object) -> None:
            await trio.sleep_forever()

        stranger.peers._offer_hello = say_nothing  # type: ignore[method-assign]
        await stranger._transport.dial(a.key, a.address_record().addresses[0])
        streams = [await stranger._transport.open_stream(a.key, protocol) for protocol in (SYNC, BLOB)]
        for stream in streams:
            await stream.write(b"R" + blob + bytes(4) + b"\1\0\0\0")
        for stream in streams:
            with trio.fail_after(120), pytest.raises(StreamError):
                await read_exactly(stream, 1)


async def test_a_hello_of_rubbish_closes_its_sender_alone(open_group: OpenGroup) -> None:
    async with open_group(3, QUICK) as (a, b, c):
        for raw in (b"\xff" * 50, (1 << 31).to_bytes(4, "little") + b"x", b"\x00\x00\x00\x00"):
            known = a.peers.get(b.key)
            stream = await b._transport.open_stream(a.key, HELLO)
            await stream.write(raw)
            with trio.fail_after(120):
                while a.peers.get(b.key) is known:  # it may be back before this task looks
                    await a.peers.changed.wait()
                await a.wait_for_peers(frozenset({b.key}))
                await b.wait_for_peers(frozenset({a.key}))
        assert c.key in a.connected()


async def test_a_question_of_rubbish_ends_its_stream_and_the_next_is_answered(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b):

        async def answer(_key: bytes, request: SyncRequest) -> SyncReply:
            if request.height == 13:
                raise ValueError("a bug of the handler")
            return SyncReply(found=True)

        b.set_sync_handler(answer)
        for raw in (b"\x03\x00\x00\x00abc", b"\xff\xff\xff\xff", b"\x01\x00\x00\x00\xc1"):
            stream = await a._transport.open_stream(b.key, SYNC)
            await stream.write(raw)
            with trio.fail_after(120), pytest.raises(StreamError):
                await read_exactly(stream, 1)
        assert (await a.ask(b.key, SyncRequest("announcements", height=13), timeout_s=60)).found is False
        assert (await a.ask(b.key, SyncRequest("announcements", height=12), timeout_s=60)).found is True


async def test_an_answer_that_does_not_come_is_an_error_in_time(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b):

        async def never(_key: bytes, _request: SyncRequest) -> SyncReply:
            await trio.sleep_forever()
            raise AssertionError

        b.set_sync_handler(never)
        with pytest.raises(NetworkError, match=r"no answer to table in 0\.3 s"):
            await a.ask(b.key, SyncRequest("table", key=bytes(32)), timeout_s=0.3)


async def test_a_message_above_4_kib_or_empty_is_not_published(open_group: OpenGroup) -> None:
    async with open_group(1) as (a,):
        await a.publish(bytes(4_096))
        for message in (bytes(4_097), b""):
            with pytest.raises(NetworkError, match="must be 1 to 4096"):
                await a.publish(message)


async def test_a_flood_is_cut_off_at_its_origin_and_others_are_heard(open_group: OpenGroup) -> None:
    """B16: an allowed origin may send its burst, then its rate."""
    async with open_group(3, NetworkLimits(gossip_burst=20, gossip_per_s=0.01)) as (a, b, c):
        for number in range(400):
            await b.publish(b"junk" + number.to_bytes(4, "big"))
        await c.publish(b"honest")
        got: list[bytes] = []
        with trio.fail_after(120):
            while b"honest" not in got:
                got.append((await a.messages().receive())[1])
        await trio.sleep(0.3)
        assert a.statistics().gossip_received <= 30
        assert a.statistics().gossip_refused > 0


async def test_a_forged_or_expired_address_record_is_not_dialed(open_any: OpenNode) -> None:
    async with open_two(open_any) as (a, b):
        for node in (a, b):
            node.set_plan(RUN, PLAN)
            node.set_allowed(frozenset({a.key, b.key}))
        good = b.address_record()
        forged = AddressRecord(good.p2p, ("/ip4/127.0.0.1/tcp/1",), good.expires_unix, good.signature)
        expired = sign_address_record(build_identity(2), good.addresses, 1_000)
        a.set_addresses([forged, expired])
        await trio.sleep(0.5)
        assert a.connected() == frozenset()
        a.set_addresses([good])
        with trio.fail_after(120):
            await a.wait_for_peers(frozenset({b.key}))


async def test_another_key_at_an_address_is_not_believed(open_any: OpenNode) -> None:
    async with open_two(open_any) as (a, b):
        lie = sign_address_record(build_identity(9), b.address_record().addresses, 1 << 40)
        keys = frozenset({a.key, b.key, lie.p2p})
        for node in (a, b):
            node.set_plan(RUN, PLAN)
            node.set_allowed(keys)
        with pytest.raises(NetworkError):
            await a._transport.dial(lie.p2p, lie.addresses[0])
        a.set_addresses([lie])
        await trio.sleep(0.3)
        assert a.connected() == frozenset()


async def test_another_run_closes_everybody_and_forgives_liars(open_group: OpenGroup) -> None:
    async with open_group(2, QUICK) as (a, b):
        a._fetcher.book.ban(b.key, "a lie")
        for node in (a, b):
            node.set_plan(OTHER, PLAN)
        assert a.banned() == {}
        await until_met(a, b)


async def test_dead_peers_leave_no_streams_or_queues_behind(open_any: OpenNode) -> None:
    async with open_any(1, QUICK) as a:
        for _ in range(3):
            async with open_any(2, QUICK) as b:
                await meet(a, b)
                await a.publish(b"hello")
                with trio.fail_after(120):
                    await b.messages().receive()
            with trio.fail_after(120):
                while a.connected() or a._outboxes:
                    await trio.sleep(0.02)
        assert a.peers.get(b.key) is None
