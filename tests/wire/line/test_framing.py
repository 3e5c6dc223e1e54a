"""Frames: whole or not at all, bounded in size and in time."""

import struct

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from psyche.errors import WireError
from psyche.wire.line.framing import ConnectionLost, FrameStream, FrameTimeout


def make_pair(limit: int = 1 << 20) -> tuple[FrameStream, FrameStream]:
    left, right = memory_stream_pair()
    return FrameStream(left, limit), FrameStream(right, limit)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=6), st.integers(1, 50))
def test_frames_arrive_whole_and_in_order_however_the_bytes_are_cut(frames: list[bytes], cut: int) -> None:
    async def main() -> None:
        left, right = memory_stream_pair()
        reader = FrameStream(right, 300)
        raw = b"".join(struct.pack("<I", len(f)) + f for f in frames)
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                for i in range(0, len(raw), cut):
                    await left.send_all(raw[i : i + cut])
                await left.aclose()

            nursery.start_soon(write)
            assert [await reader.receive(5) for _ in frames] == frames
            with pytest.raises(ConnectionLost):
                await reader.receive(5)

    trio.run(main)


async def test_a_ten_gigabyte_prefix_is_refused_before_anything_is_allocated() -> None:
    left, right = memory_stream_pair()
    reader = FrameStream(right, 1_000)
    await left.send_all(struct.pack("<I", 0xFFFFFFFF))
    with pytest.raises(WireError, match=r"4294967295 bytes announced, at most 1000"):
        await reader.receive(5)


async def test_a_frame_over_the_limit_is_never_sent() -> None:
    writer, reader = make_pair(limit=10)
    with pytest.raises(WireError, match="11 bytes to send, at most 10"):
        await writer.send(bytes(11), 5)
    await writer.send(b"after", 5)
    assert await reader.receive(5) == b"after"


async def test_a_stream_that_ends_inside_a_frame_is_malformed() -> None:
    left, right = memory_stream_pair()
    reader = FrameStream(right, 1_000)
    await left.send_all(struct.pack("<I", 10) + b"half")
    await left.aclose()
    with pytest.raises(WireError, match="6 bytes before its end"):
        await reader.receive(5)


async def test_a_slow_frame_times_out_and_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    left, right = memory_stream_pair()
    reader = FrameStream(right, 1_000)
    await left.send_all(struct.pack("<I", 4) + b"sl")
    with pytest.raises(FrameTimeout):
        await reader.receive(2)
    await left.send_all(b"ow")
    assert await reader.receive(2) == b"slow"


async def test_a_reader_that_does_not_read_costs_its_own_connection(autojump_clock: trio.testing.MockClock) -> None:
    left, _right = trio.testing.lockstep_stream_pair()
    writer = FrameStream(left, 1_000)
    with pytest.raises(FrameTimeout):
        await writer.send(b"nobody takes this", 3)


async def test_sending_into_a_closed_connection_is_a_lost_connection() -> None:
    writer, reader = make_pair()
    await reader.aclose()
    with pytest.raises(ConnectionLost):
        await writer.send(b"x", 5)
    await writer.aclose()
    with pytest.raises(ConnectionLost):
        await writer.receive(5)


async def test_several_tasks_may_send_without_mixing_frames() -> None:
    writer, reader = make_pair()
    frames = [bytes([i]) * (i * 100) for i in range(10)]
    async with trio.open_nursery() as nursery:
        for frame in frames:
            nursery.start_soon(writer.send, frame, 5)
        received = [await reader.receive(5) for _ in frames]
    assert sorted(received) == sorted(frames)
    assert reader.bytes_received == writer.bytes_sent == sum(map(len, frames)) + 4 * len(frames)
