"""One budget for what all connections of a node hold unread: kept, the greedy cut first, everything given back."""

import dataclasses
import logging
import random
import signal
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kits.tier import few
from network_kit import PLAN, PROBE, RUN, Victim, fetch_file, introduce, meet, open_peer, until_met
from trio.testing import MockClock

from psyche.network.limits import NetworkLimits
from psyche.network.memory.node import MemoryHub
from psyche.network.node import P2PNode, get_peer_id, open_node
from psyche.network.safe import FIRST_WINDOW_BYTES
from psyche.network.unread import Overflow, Standing, StreamBuffer, StreamBuffers, UnreadBudget
from psyche.testing.builders import build_identity

MIB = 1 << 20
BUDGET = 4 * MIB
LIMITS = NetworkLimits(unread_bytes=BUDGET, unread_per_connection_bytes=3 * MIB, cut_rest_s=2.0, asked_bytes=2 * MIB)
STRANGERS = 6
FRAME_BYTES = 65_536 - 12
HONEST = 90


def build_budget(max_bytes: int = 1_000, connection_bytes: int = 600) -> tuple[UnreadBudget, list[tuple[str, str]]]:
    """A budget with peers named by their standing, and who was cut, and why."""
    cut: list[tuple[str, str]] = []
    budget = UnreadBudget(max_bytes, connection_bytes, 60.0)
    budget.get_standing = lambda owner: {"m": Standing.MEMBER, "a": Standing.ALLOWED}.get(owner[0], Standing.UNKNOWN)
    budget.on_cut = lambda owner, reason: cut.append((owner, reason))
    return budget, cut


def fill(budget: UnreadBudget, owner: str, size: int) -> StreamBuffers:
    buffers = StreamBuffers(budget, owner, 8)
    buffers[1] = bytearray()
    buffers[1].extend(bytes(size))
    return buffers


@given(st.lists(st.one_of(st.binary(max_size=300), st.integers(0, 400)), max_size=60))
def test_a_buffer_gives_back_the_bytes_it_was_given_in_their_order(steps: list[bytes | int]) -> None:
    budget, _ = build_budget(1 << 20, 1 << 20)
    buffers = fill(budget, "m1", 0)
    buffer, model = buffers[1], bytearray()
    for step in steps:
        if isinstance(step, bytes):
            buffer.extend(step)
            model.extend(step)
        else:
            assert buffer[:step] == bytes(model[:step])
            del buffer[:step]
            del model[:step]
        assert bytes(buffer) == bytes(model)
        assert len(buffer) == budget.held_bytes == buffers.account.held_bytes == len(model)
    del buffers[1]
    assert budget.held_bytes == 0
    assert not budget._holders


async def test_single_bytes_are_not_kept_one_by_one() -> None:
    budget, _ = build_budget(1 << 20, 1 << 20)
    buffer: StreamBuffer = fill(budget, "m1", 0)[1]
    for _ in range(100_000):
        buffer.extend(b"x")
    assert len(buffer._parts) <= 4


async def test_the_one_that_holds_most_is_cut_first() -> None:
    budget, cut = build_budget()
    first, second, third = fill(budget, "a1", 300), fill(budget, "a2", 400), fill(budget, "a3", 200)
    third[1].extend(bytes(150))
    assert cut == [("a2", "400 bytes unread, the most of 900 that all connections hold")]
    assert (len(first[1]), len(second), len(third[1])) == (300, 0, 350)
    assert budget.held_bytes == 650
    second[3] = bytearray()
    with pytest.raises(Overflow):
        second[3].extend(b"x")


async def test_a_member_is_cut_after_all_others_that_hold_their_share() -> None:
    budget, cut = build_budget()
    member, allowed, _unknown = fill(budget, "m1", 450), fill(budget, "a1", 260), fill(budget, "u1", 250)
    with pytest.raises(Overflow):
        allowed[1].extend(bytes(100))  # 1,060: the average is 353, and the unknown one holds less than that
    assert [owner for owner, _ in cut] == ["a1"]
    assert len(member[1]) == 450


async def test_who_holds_little_is_not_cut_for_a_greedy_member() -> None:
    budget, cut = build_budget()
    small = [fill(budget, f"u{n}", 20) for n in range(10)]
    greedy = fill(budget, "m1", 590)
    other = fill(budget, "m2", 200)
    other[1].extend(bytes(100))
    assert [owner for owner, _ in cut] == ["m1"]
    assert all(len(one[1]) == 20 for one in small)
    assert not greedy


async def test_one_connection_has_a_limit_of_its_own() -> None:
    budget, cut = build_budget()
    with pytest.raises(Overflow):
        fill(budget, "m1", 601)
    assert cut == [("m1", "more than 600 bytes unread")]
    assert budget.held_bytes == 0


async def test_bytes_on_their_way_in_count() -> None:
    budget, cut = build_budget()
    held = fill(budget, "a1", 500)
    coming = StreamBuffers(budget, "a2", 8)
    with coming.account.expecting(450):
        assert budget.held_bytes == 950
        with pytest.raises(Overflow):
            held[1].extend(bytes(60))
        assert [owner for owner, _ in cut] == ["a1"]
    assert budget.held_bytes == 0


async def test_who_was_cut_rests_unless_it_is_a_member(autojump_clock: MockClock) -> None:
    budget, _ = build_budget()
    for owner in ("a1", "m1"):
        budget.cut(fill(budget, owner, 10).account, "for a test")
    assert budget.is_resting("a1")
    assert not budget.is_resting("m1")
    await trio.sleep(61)
    assert not budget.is_resting("a1")
    budget.cut(fill(budget, "a2", 10).account, "for a test")
    assert list(budget._resting) == ["a2"]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_connections_do_the_sum_stays_below_the_budget(seed: int) -> None:
    rng = random.Random(seed)
    budget, cut = build_budget()
    open_now: list[StreamBuffers] = []
    for number in range(2_000):
        if len(open_now) < 3 or rng.random() < 0.02:
            open_now.append(StreamBuffers(budget, f"{rng.choice('mau')}{number}", 8))
        one = rng.choice(open_now)
        stream = rng.randrange(8)
        try:
            if stream not in one:
                one[stream] = bytearray()
            one[stream].extend(bytes(rng.randrange(200)))
        except Overflow:
            assert one.account.is_cut
            open_now.remove(one)
        if rng.random() < 0.3 and stream in one:
            del one[stream][: rng.randrange(300)]
        assert budget.held_bytes == sum(len(b) for each in open_now for b in each.values()) <= 1_000
    assert cut
    for one in open_now:
        one.account.close()
    assert budget.held_bytes == 0
    assert not budget._holders


# real nodes


def get_connections(node: P2PNode) -> list[Any]:
    return list(node._transport._host.get_network().get_connections())  # type: ignore[attr-defined]


def count_unread(node: P2PNode) -> int:
    """What the connections of a node hold, counted by looking."""
    return sum(len(b) for one in get_connections(node) for b in one.muxed_conn.stream_buffers.values())


@asynccontextmanager
async def open_stranger(number: int, folder: Path, node: P2PNode) -> AsyncIterator[P2PNode]:
    async with open_node(build_identity(number), "127.0.0.1", 0, folder / str(number)) as stranger:
        stranger.set_plan(RUN, PLAN)
        stranger.set_allowed(frozenset({node.key}))
        stranger.set_addresses([node.address_record()])
        with trio.fail_after(120):
            await stranger.wait_for_peers(frozenset({node.key}))
        yield stranger


async def push(stranger: P2PNode, node: P2PNode, most: list[int]) -> None:
    """Fill the windows of streams that nobody reads, one after another, until the connection ends."""
    from psyche.network.blobs.messages import BlobRequest, encode_blob_request

    (connection,) = get_connections(stranger)
    write = connection.muxed_conn.secured_conn.write
    stream = await stranger._transport._host.new_stream(get_peer_id(node.key), ["/psyche/blob/1"])  # type: ignore[attr-defined]
    await stream.write(encode_blob_request(BlobRequest(bytes(32), 0, 16))[:-1])  # the node waits for the rest of it
    first = stream.muxed_stream.stream_id + 2
    try:
        for number in range(first, first + 2 * node.limits.streams_per_connection, 2):
            await write(struct.pack("!BBHII", 0, 1, 1, number, 0))  # a stream whose protocol is not named
            for _ in range(FIRST_WINDOW_BYTES // FRAME_BYTES):
                await write(struct.pack("!BBHII", 0, 0, 0, number, FRAME_BYTES) + bytes(FRAME_BYTES))
                most[0] = max(most[0], count_unread(node))
    except Exception:  # noqa: BLE001 - it was cut
        pass


@pytest.mark.whole
async def test_strangers_that_fill_all_they_can_leave_an_honest_transfer_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "psyche.network")
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(
            open_node(build_identity(1), "127.0.0.1", 0, tmp_path / "1", limits=LIMITS)
        )
        honest = await stack.enter_async_context(open_node(build_identity(HONEST), "127.0.0.1", 0, tmp_path / "h"))
        introduce([node, honest])
        keys = {build_identity(n).public for n in range(2, 2 + STRANGERS)}
        node.set_allowed(frozenset({honest.key, *keys}), frozenset({honest.key}))
        with trio.fail_after(120):
            await node.wait_for_peers(frozenset({honest.key}))
        data = random.Random(1).randbytes(8 * MIB)
        blob = await honest.provide(data, expires=None)
        most = [0]
        for wave in range(2):
            async with AsyncExitStack() as wave_stack:
                strangers = [
                    await wave_stack.enter_async_context(open_stranger(n, tmp_path / str(wave), node))
                    for n in range(2, 2 + STRANGERS)
                ]
                async with trio.open_nursery() as nursery:
                    for stranger in strangers:
                        nursery.start_soon(push, stranger, node, most)
                    with trio.fail_after(60):
                        deadline = trio.current_time() + 60
                        got = await node.fetch(blob, [honest.key], size_bytes=len(data), deadline=deadline)
                        assert got == data
                    await node.withdraw(blob)
                    with trio.fail_after(60):
                        while node.connected() - {honest.key}:
                            await node.peers.changed.wait()
                    nursery.cancel_scope.cancel()
            with trio.fail_after(120):
                while node.unread.held_bytes or len(get_connections(node)) > 1:
                    await trio.sleep(0.05)
            await trio.sleep(LIMITS.cut_rest_s)
        assert honest.key in node.connected()
        assert MIB < most[0] <= BUDGET
        assert node.statistics().cuts >= 2 * STRANGERS - 2
        assert node.statistics().unread_bytes == 0
        assert not node.unread._holders
        assert set(node.refusals()) <= keys
    assert "is closed:" in caplog.text
    assert "bytes unread" in caplog.text


@pytest.mark.parametrize("is_member", few([True, False]))
async def test_who_sends_past_a_window_is_cut_with_the_reason_and_rests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_member: bool
) -> None:
    caplog.set_level(logging.INFO, "psyche.network")
    limits = dataclasses.replace(LIMITS, health_check_s=600.0, cut_rest_s=5.0)
    async with open_node(build_identity(1), "127.0.0.1", 0, tmp_path / "1", limits=limits) as node:
        key = build_identity(2).public
        node.set_plan(RUN, PLAN)
        node.set_allowed(frozenset({key}), frozenset({key} if is_member else ()))
        async with open_stranger(2, tmp_path, node) as stranger:
            (connection,) = get_connections(stranger)
            with trio.fail_after(60):
                await node.wait_for_peers(frozenset({key}))
                node.set_addresses([stranger.address_record()])
                frame = struct.pack("!BBHII", 0, 0, 1, 77, 16 * MIB)
                await connection.muxed_conn.secured_conn.write(frame + bytes(100))
                while node.connected():
                    await node.peers.changed.wait()
                assert node.refusals() == {key: "a frame of 16777216 bytes in a window of 262144"}
                while not (redial := node.peers.dialer.get(key)) or "cut less than 5 s ago" not in redial.failure:
                    await trio.sleep(0.05)
                while "refused: the peer was cut a moment ago" not in caplog.text:
                    await trio.sleep(0.05)
                assert node.unread.held_bytes == 0
                await node.wait_for_peers(frozenset({key}))
        assert f"peer {key.hex()[:16]} is closed: a frame of 16777216 bytes" in caplog.text


@pytest.mark.whole
async def test_a_peer_that_takes_nothing_is_closed_and_what_it_holds_is_given_back(
    victim: Victim, tmp_path: Path
) -> None:
    """Pubsub and yamux write without an end to their waiting: it would keep the connection as long as it likes."""
    limits = NetworkLimits(write_s=1.0, health_check_s=600.0)
    async with open_peer(PROBE, victim, tmp_path, limits=limits) as node:
        (connection,) = get_connections(node)
        victim.process.send_signal(signal.SIGSTOP)
        try:
            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:

                    async def write() -> None:
                        frame = struct.pack("!BBHII", 0, 2, 2, 0, 0)  # an answer to a ping, as often as it is asked for
                        while True:
                            await connection.muxed_conn._write_frame(frame * 5_000)

                    async def write_to_the_end() -> None:
                        with pytest.raises(Exception, match="accepted no data within 1 s"):
                            await write()

                    nursery.start_soon(write_to_the_end)
                    while node.connected():
                        await node.peers.changed.wait()
        finally:
            victim.process.send_signal(signal.SIGCONT)
        assert not connection.muxed_conn.stream_buffers


async def test_a_stream_that_is_given_up_holds_nothing(tmp_path: Path) -> None:
    """yamux keeps what nobody will read for a minute."""
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(open_node(build_identity(1), "127.0.0.1", 0, tmp_path / "1"))
        peer = await stack.enter_async_context(open_node(build_identity(2), "127.0.0.1", 0, tmp_path / "2"))
        introduce([node, peer])
        await until_met(node, peer)
        blob = await peer.provide(bytes(MIB), expires=None)
        from psyche.network.blobs.messages import BlobRequest, encode_blob_request

        stream = await node._transport.open_stream(peer.key, "/psyche/blob/1")
        await stream.write(encode_blob_request(BlobRequest(blob, 0, 1)))
        with trio.fail_after(120):
            while count_unread(node) < 100_000:
                await trio.sleep(0.01)
        await stream.reset()
        assert count_unread(node) == 0


async def test_all_sources_together_are_asked_for_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """What is asked for and comes at once is unread for a moment: it must fit the node's budget."""
    limits = NetworkLimits(asked_bytes=4 * MIB)
    hub, data, most = MemoryHub(random.Random(3)), random.Random(4).randbytes(48 * MIB), [0]
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(hub.open_node(build_identity(n), tmp_path / str(n), limits=limits))
            for n in range(1, 8)
        ]
        await meet(*nodes)
        fetcher, *sources = nodes
        (blob,) = {await source.provide(data, expires=None) for source in sources}

        def note(_present: int) -> None:
            most[0] = max(most[0], fetcher._fetcher.book.asked_bytes)

        with trio.fail_after(60):
            found = await fetch_file(fetcher, blob, sources, tmp_path / "file", len(data), progress=note)
        assert found.read_bytes() == data
        assert 4 * MIB <= most[0] <= (4 + len(sources)) * MIB
        assert fetcher._fetcher.book.asked_bytes == 0
