"""What the `Network` port promises, held by both implementations."""

import random

import pytest
import trio
from network_kit import OpenGroup, OpenNode

from psyche.errors import NetworkError
from psyche.network.base import BaseNode
from psyche.wire.crypto import blob_id_of
from psyche.wire.ports import SyncReply, SyncRequest


async def receive(node: BaseNode) -> tuple[bytes, bytes]:
    with trio.fail_after(120):
        return await node.messages().receive()


async def test_a_published_message_reaches_every_peer_once_with_its_origin(open_group: OpenGroup) -> None:
    async with open_group(3) as nodes:
        await nodes[0].publish(b"hello")
        for node in nodes[1:]:
            assert await receive(node) == (nodes[0].key, b"hello")
        await nodes[1].publish(b"again")
        assert await receive(nodes[0]) == (nodes[1].key, b"again")
        assert await receive(nodes[2]) == (nodes[1].key, b"again")
        assert nodes[0].statistics().gossip_received == 1


async def test_a_payload_is_fetched_and_offered_on(open_group: OpenGroup) -> None:
    data = random.Random(2).randbytes(3_000_000)
    async with open_group(3) as (a, b, c):
        blob = await a.provide(data, expires=(0, 9))
        assert blob == blob_id_of(data)
        deadline = trio.current_time() + 20
        assert await b.fetch(blob, [a.key], size_bytes=len(data), deadline=deadline) == data
        await a.withdraw(blob)
        assert await c.fetch(blob, [a.key, b.key], size_bytes=len(data), deadline=deadline) == data
        assert b.statistics().bytes_sent >= len(data)


async def test_a_question_is_answered_by_the_handler(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b):

        async def answer(key: bytes, request: SyncRequest) -> SyncReply:
            return SyncReply(found=True, items=(key, request.kind.encode(), bytes([request.height])))

        b.set_sync_handler(answer)
        request = SyncRequest("announcements", epoch=1, height=5, have=1 << 255)
        for _ in range(3):
            reply = await a.ask(b.key, request, timeout_s=60)
            assert reply == SyncReply(found=True, items=(a.key, b"announcements", b"\x05"))


async def test_asking_a_peer_that_is_not_there_fails(open_group: OpenGroup) -> None:
    async with open_group(1) as (a,):
        with pytest.raises(NetworkError, match="not connected"):
            await a.ask(b"\x01" * 32, SyncRequest("table", key=b"\0" * 32), timeout_s=1)


async def test_an_error_inside_a_node_comes_out_as_it_is(open_any: OpenNode) -> None:
    with pytest.raises(ValueError, match="our own"):
        async with open_any(1):
            raise ValueError("our own")


async def test_a_cancelled_node_is_gone_and_its_key_can_come_back(open_any: OpenNode) -> None:
    for _ in range(2):
        with trio.move_on_after(0.2) as scope:
            async with open_any(1):
                await trio.sleep_forever()
        assert scope.cancelled_caught
