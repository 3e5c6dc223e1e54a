"""Replies of the data server go out as they are taken: who reads slowly, or not at all, holds up nobody (K7)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from psyche.data import client as client_module
from psyche.data import server as server_module
from psyche.data.client import RemoteData
from psyche.data.local import TokenRows
from psyche.data.server import PART_BYTES, DataServer, RowsReply
from psyche.errors import DataError
from psyche.testing.builders import build_identity
from psyche.wire.crypto import Identity
from psyche.wire.data import (
    LEAST_RATE_BYTES_S,
    MAX_REPLY_BYTES,
    PURPOSE,
    FetchRequest,
    Rows,
    decode_data_reply,
    encode_data_request,
)
from psyche.wire.line.framing import ConnectionLost, FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import TlsConnection, make_channel

SERVER = build_identity("server")
ALICE = build_identity("alice")
LENGTH = 1_000
ROWS = 500  # of 2,000 bytes
IDLERS = [build_identity(i) for i in range(server_module.MAX_READS + 8)]
pytestmark = pytest.mark.usefixtures("no_threads")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read at once: a clock that jumps does not wait for threads."""

    async def run_sync(function: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None) -> Any:
        if limiter is not None:
            async with limiter:
                return function(*args)
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


class Source(TokenRows):
    """Notes what is read, and fails where it is told."""

    def __init__(self, folder: Path, length: int = LENGTH) -> None:
        np.arange(ROWS * LENGTH).astype("<u2").tofile(folder / "tokens.bin")
        super().__init__([folder], 2, length)
        self.reads: list[tuple[int, int]] = []
        self.fails_at_read = -1

    def samples(self, start: int, end: int) -> NDArray[np.uint32]:
        self.reads.append((start, end))
        if len(self.reads) == self.fails_at_read:
            raise DataError("disk: cannot be read")
        return super().samples(start, end)


def make_server(source: Source) -> DataServer:
    server = DataServer(source, SERVER)
    server.set_assignments(3, 5, {one.public: (0, source.num_sequences - 1) for one in (ALICE, *IDLERS)})
    return server


def expected(length: int, start: int, end: int) -> bytes:
    ids = np.arange(ROWS * LENGTH).astype("<u2")
    return ids[start * length : (end + 1) * length].tobytes()


@asynccontextmanager
async def connected(server: DataServer, identity: Identity) -> AsyncIterator[FrameStream]:
    """A client's end of a line that holds nothing: the server waits until what it sends is taken."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    frames = FrameStream(ours, MAX_REPLY_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle, theirs)
        await client_handshake(frames, identity, PURPOSE, make_channel(SERVER), SERVER.public, 5)
        yield frames
        nursery.cancel_scope.cancel()


async def send_request(frames: FrameStream, start: int, end: int) -> None:
    await frames.send(encode_data_request(FetchRequest(3, 5, start, end)), 5)


async def test_members_that_do_not_read_hold_up_nobody(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    server = make_server(Source(tmp_path))
    async with trio.open_nursery() as nursery:

        async def idle(identity: Identity) -> None:
            async with connected(server, identity) as frames:
                await send_request(frames, 0, ROWS - 1)
                await trio.sleep_forever()

        for identity in IDLERS:
            nursery.start_soon(idle, identity)
        await trio.testing.wait_all_tasks_blocked()
        async with connected(server, ALICE) as frames:
            asked_at = trio.current_time()
            await send_request(frames, 0, ROWS - 1)
            reply = decode_data_reply(await frames.receive(60))
        assert isinstance(reply, Rows)
        assert trio.current_time() == asked_at, "on the test's own clock, which jumps where everybody waits"
        nursery.cancel_scope.cancel()


async def test_a_reply_that_nobody_reads_holds_one_part(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    source = Source(tmp_path)
    async with connected(make_server(source), ALICE) as frames:
        await send_request(frames, 0, ROWS - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.reads) == 1
        start, end = source.reads[0]
        assert (end - start) * LENGTH * 2 <= PART_BYTES, "not a row more than a part needs"
        reply = decode_data_reply(await frames.receive(60))
        assert isinstance(reply, Rows)
        assert reply.ids == expected(LENGTH, 0, ROWS - 1)


async def test_a_member_that_takes_nothing_is_closed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with connected(make_server(Source(tmp_path)), ALICE) as frames:
        await send_request(frames, 0, ROWS - 1)
        await trio.sleep(server_module.SEND_TIMEOUT_S + 1)
        with pytest.raises(ConnectionLost):
            await send_request(frames, 0, 0)


class NarrowLine(trio.abc.Stream):
    """A line that brings so many bytes a second to this end."""

    def __init__(self, stream: trio.abc.Stream, rate_bytes_s: int) -> None:
        self._stream, self._rate_bytes_s = stream, rate_bytes_s

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.sleep(1)
        return bytes(await self._stream.receive_some(self._rate_bytes_s))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def narrow_client(
    server: DataServer, rate_bytes_s: int, monkeypatch: pytest.MonkeyPatch, length: int = LENGTH
) -> AsyncIterator[RemoteData]:
    async def connect(*_: object) -> TlsConnection:
        ours, theirs = trio.testing.lockstep_stream_pair()
        nursery.start_soon(server.handle, theirs)
        return TlsConnection(NarrowLine(ours, rate_bytes_s), make_channel(SERVER))

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(client_module, "open_tls", connect)
        client = RemoteData("h:1", ALICE, sequence_length=length, expected_server=SERVER.public)
        yield client
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_a_narrow_line_brings_a_large_batch_however_long_it_takes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(tmp_path)
    async with narrow_client(make_server(source), 5_000, monkeypatch) as client:  # 40 kbit/s
        rows = await client.get(0, ROWS - 1, epoch=3, height=5)
    assert np.frombuffer(rows, "<u4").astype("<u2").tobytes() == expected(LENGTH, 0, ROWS - 1)
    assert max(source.reads) == source.reads[-1], "in one reply, from its first row to its last"


async def test_a_reply_below_the_least_rate_is_given_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.0,))
    async with narrow_client(make_server(Source(tmp_path)), LEAST_RATE_BYTES_S // 2, monkeypatch) as client:
        with pytest.raises(DataError, match="did not arrive"):
            await client.get(0, ROWS - 1, epoch=3, height=5)


@pytest.mark.parametrize("length", [1, LENGTH, 32 << 10, 100_001])
@pytest.mark.parametrize("token_size_bytes", [2, 4])
def test_the_parts_of_a_reply_are_its_rows_whatever_their_length(
    tmp_path: Path, length: int, token_size_bytes: int
) -> None:
    source = Source(tmp_path, length)
    source.token_size_bytes = token_size_bytes
    end = min(4, source.num_sequences - 1) if length > LENGTH else source.num_sequences - 1
    reply = RowsReply(source, FetchRequest(3, 5, 1, min(end, 60_000)))
    frame = reply.read_first()
    while len(frame) < reply.size_bytes:
        part = reply.read(len(frame))
        assert 0 < len(part) <= PART_BYTES
        frame += part
    rows = decode_data_reply(frame)
    assert isinstance(rows, Rows)
    assert (rows.start, rows.end, rows.sequence_length) == (1, min(end, 60_000), length)
    ids = np.frombuffer(rows.ids, f"<u{token_size_bytes}").astype("<u2").tobytes()
    assert ids == expected(length, rows.start, rows.end)


async def test_a_disk_that_fails_in_the_middle_of_a_reply_costs_one_try(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(tmp_path)
    source.fails_at_read = 2
    async with narrow_client(make_server(source), 1 << 20, monkeypatch) as client:
        rows = await client.get(0, 99, epoch=3, height=5)
    assert np.frombuffer(rows, "<u4").astype("<u2").tobytes() == expected(LENGTH, 0, 99)
