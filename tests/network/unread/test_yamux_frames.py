"""What yamux gets of a connection: frames within their windows, in parts, as they arrive."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.yamux import yamux

from psyche.network.safe import FIRST_WINDOW_BYTES, _Frames
from psyche.network.unread import PART_BYTES, StreamBuffers, UnreadBudget

MIB = 1 << 20
OWNER = "m"
DATA, UPDATE, SYN, FIN, RST = 0, 1, 1, 4, 8


class Line:
    """A connection to a peer: what the peer sends is put into `peer`; what yamux sends is kept."""

    is_initiator = False

    def __init__(self) -> None:
        self.peer, self._inbound = trio.testing.memory_stream_one_way_pair()
        self.sent: list[tuple[int, ...]] = []
        self.is_closed = trio.Event()

    async def read(self, size_bytes: int) -> bytes:
        found = b""
        while len(found) < size_bytes and (part := await self._inbound.receive_some(size_bytes - len(found))):
            found += part
        return bytes(found)

    async def write(self, data: bytes) -> None:
        self.sent.append(struct.unpack("!BBHII", data[:12]))

    async def close(self) -> None:
        self.is_closed.set()


@asynccontextmanager
async def open_line(*, streams: int = 8) -> AsyncIterator[tuple[Line, yamux.Yamux, dict[str, str]]]:
    cut: dict[str, str] = {}
    budget = UnreadBudget(64 * MIB, 64 * MIB, 60.0)
    budget.on_cut = cut.__setitem__
    line = Line()
    muxed = yamux.Yamux(line, OWNER)  # type: ignore[arg-type]
    muxed.stream_buffers = StreamBuffers(budget, OWNER, streams)
    line.read = _Frames(muxed).read  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(muxed.start)
        yield line, muxed, cut
        nursery.cancel_scope.cancel()
    muxed.stream_buffers.account.close()
    assert budget.held_bytes == 0


def frame(kind: int, flags: int, stream_id: int, length: int, body: bytes = b"") -> bytes:
    return struct.pack("!BBHII", 0, kind, flags, stream_id, length) + body


async def open_wide(line: Line, muxed: yamux.Yamux, window: int) -> yamux.YamuxStream:
    """A stream of the peer whose window has grown."""
    await line.peer.send_all(frame(UPDATE, SYN, 1, 0))
    stream = await muxed.accept_stream()
    assert isinstance(stream, yamux.YamuxStream)
    stream.recv_window = window
    return stream


async def test_one_frame_may_fill_a_window_that_has_grown() -> None:
    data = bytes(range(256)) * (4 * MIB // 256)
    async with open_line() as (line, muxed, cut):
        stream = await open_wide(line, muxed, len(data))
        await line.peer.send_all(frame(DATA, FIN, 1, len(data), data))
        found = b""
        with trio.fail_after(120):
            while len(found) < len(data):
                found += await stream.read(MIB)
            assert found == data
            with pytest.raises(Exception, match="closed for receiving"):
                await stream.read(1)
        assert not cut


async def test_what_has_come_of_a_large_frame_is_read_before_the_rest_comes() -> None:
    """On a slow line a frame takes long; a source that looks silent meanwhile would be given up."""
    async with open_line() as (line, muxed, cut):
        stream = await open_wide(line, muxed, 16 * MIB)
        await line.peer.send_all(frame(DATA, 0, 1, 16 * MIB, b"x" * (PART_BYTES + 100)))
        with trio.fail_after(120):
            assert await stream.read(MIB) == b"x" * PART_BYTES
        assert muxed.stream_buffers.account.held_bytes < 2 * PART_BYTES  # type: ignore[attr-defined]
        assert not cut


async def test_a_frame_that_opens_a_stream_opens_one_and_ends_with_its_last_byte() -> None:
    data = bytes(FIRST_WINDOW_BYTES)
    async with open_line() as (line, muxed, cut):
        await line.peer.send_all(frame(DATA, SYN | FIN, 1, len(data), data))
        found = b""
        with trio.fail_after(120):
            stream = await muxed.accept_stream()
            while len(found) < len(data):
                found += await stream.read(MIB)
        assert [one[2] for one in line.sent if one[3] == 1 and one[2]] == [2]  # one ACK, no reset
        assert not cut


async def test_what_comes_for_a_stream_that_was_reset_is_dropped_and_the_next_frame_read() -> None:
    async with open_line() as (line, muxed, cut):
        stream = await open_wide(line, muxed, 16 * MIB)
        await stream.reset()
        await line.peer.send_all(frame(DATA, 0, 1, 16 * MIB, bytes(16 * MIB)))
        await line.peer.send_all(frame(DATA, SYN, 3, 4, b"next"))
        with trio.fail_after(120):
            assert await (await muxed.accept_stream()).read(100) == b"next"
        assert not cut


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (frame(DATA, SYN, 3, FIRST_WINDOW_BYTES + 1), "a frame of 262145 bytes in a window of 262144"),
        (frame(DATA, 0, 1, MIB + 1), "a frame of 1048577 bytes in a window of 1048576"),
        (frame(DATA, 0, 1, MIB, bytes(MIB)) + frame(DATA, 0, 1, 1), "a frame of 1 bytes in a window of 0"),
        (frame(DATA, 0, 99, 16 * MIB + 1), "a frame of 16777217 bytes in a window of 16777216"),
        (b"".join(frame(UPDATE, SYN, 3 + 2 * n, 0) for n in range(8)), "more than 8 streams"),
    ],
    ids=["a new stream", "an old stream", "a window used up", "no stream", "streams"],
)
async def test_past_its_window_or_its_streams_a_peer_is_cut_and_rests(sent: bytes, reason: str) -> None:
    async with open_line() as (line, muxed, cut):
        await open_wide(line, muxed, MIB)
        await line.peer.send_all(sent)
        with trio.fail_after(120):
            await line.is_closed.wait()
        assert cut == {OWNER: reason}
        assert muxed.stream_buffers.account._budget.is_resting(OWNER)  # type: ignore[attr-defined]
