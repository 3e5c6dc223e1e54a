"""Sources that die, stall, lie or never had it: the receiver finishes, and nobody is trusted (F14, F15)."""

import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from network_kit import OpenGroup, fetch_file

from psyche.errors import NetworkError, WireError
from psyche.network.base import BaseNode
from psyche.network.blobs.messages import (
    REQUEST_BYTES,
    BlobRequest,
    Status,
    decode_blob_request,
    encode_blob_request,
    encode_reply_head,
)
from psyche.network.limits import ASK_CHUNKS, NetworkLimits
from psyche.network.streams import ByteStream, read_exactly
from psyche.wire.crypto import blob_id_of

MIB = 1 << 20
DATA = random.Random(14).randbytes(12 * MIB + 5)
QUICK = NetworkLimits(min_progress_s=0.6, file_progress_s=0.6)


Twist = Callable[[ByteStream, bytes], Awaitable[bytes]]  # (stream, what an honest source would send) -> what is sent


class Liar:
    """Serves in place of a node's blob server, through a function that may change what is sent."""

    def __init__(self, node: BaseNode, twist: Twist) -> None:
        self.twist = twist
        self.honest: Any = node._server
        self.requests = 0
        node._server = self  # type: ignore[assignment]

    async def serve(self, key: bytes, stream: ByteStream) -> None:
        while True:
            raw = await read_exactly(stream, REQUEST_BYTES)
            self.requests += 1
            recorder = _Recorder()
            await self.honest._answer(recorder, decode_blob_request(raw))
            await stream.write(await self.twist(stream, bytes(recorder.data)))


class _Recorder:
    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.data += data


async def provide_all(nodes: list[BaseNode], data: bytes) -> bytes:
    for node in nodes:
        blob = await node.provide(data, expires=None)
    return blob


def in_seconds(seconds: float) -> float:
    return trio.current_time() + seconds


async def flip_last_byte(_stream: ByteStream, reply: bytes) -> bytes:
    return reply[:-1] + bytes([reply[-1] ^ 1])


async def flip_in_chunks(stream: ByteStream, reply: bytes) -> bytes:
    return await flip_last_byte(stream, reply) if len(reply) > MIB else reply


async def announce_10_gb(_stream: ByteStream, _reply: bytes) -> bytes:
    return encode_reply_head(Status.OK, 10 * 10**9) + bytes(64)


async def stall_in_chunks(stream: ByteStream, reply: bytes) -> bytes:
    if len(reply) > MIB:
        await stream.write(reply[: MIB // 2])
        await trio.sleep_forever()
    return reply


@pytest.mark.parametrize(
    ("twist", "size", "reason"),
    [
        (flip_in_chunks, 3 * MIB, "wrong"),
        (flip_last_byte, 2 * MIB, "chunk list"),
        (announce_10_gb, 5, "10000000000 bytes announced"),
        (stall_in_chunks, 2 * MIB, ""),
    ],
    ids=["a wrong chunk", "a chunk list of another blob", "a length of 10 GB", "a stall, which is no lie"],
)
async def test_a_source_that_lies_is_banned_for_the_run_and_another_finishes(
    open_group: OpenGroup, twist: Twist, size: int, reason: str
) -> None:
    data = DATA[:size]
    async with open_group(3, QUICK) as (a, b, c):
        liar = Liar(a, twist)
        blob = await provide_all([a, b], data)
        assert await c.fetch(blob, [a.key, b.key], size_bytes=size, deadline=in_seconds(20)) == data
        assert reason in c.banned().get(a.key, "")
        assert set(c.banned()) == ({a.key} if reason else set())
        asked = liar.requests
        again = await provide_all([a, b], b"another")
        assert await c.fetch(again, [b.key, a.key], size_bytes=7, deadline=in_seconds(20)) == b"another"
        assert liar.requests == asked


async def test_a_source_that_lacks_the_blob_costs_one_question(open_group: OpenGroup) -> None:
    async with open_group(3) as (a, b, c):
        blob = await b.provide(b"only b", expires=None)
        assert await c.fetch(blob, [a.key, b.key], size_bytes=6, deadline=in_seconds(20)) == b"only b"
        assert c.banned() == {}


async def test_a_source_that_gets_the_blob_late_is_asked_again(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b), trio.open_nursery() as nursery:

        async def provide_late() -> None:
            await trio.sleep(0.4)
            await a.provide(b"late", expires=None)

        nursery.start_soon(provide_late)
        assert await b.fetch(blob_id_of(b"late"), [a.key], size_bytes=4, deadline=in_seconds(20)) == b"late"


async def test_payloads_that_nobody_has_keep_no_other_from_being_fetched(open_group: OpenGroup) -> None:
    """B7: who announces and withholds must not take the places of those who deliver."""
    async with open_group(2, NetworkLimits(fetches=2)) as (a, b), trio.open_nursery() as nursery:

        async def wait_for_nothing(data: bytes) -> None:
            with pytest.raises(NetworkError):
                await b.fetch(blob_id_of(data), [a.key], size_bytes=len(data), deadline=in_seconds(60))

        for number in range(6):
            nursery.start_soon(wait_for_nothing, bytes([number]))
        await trio.sleep(1.0)
        blob = await a.provide(b"here", expires=None)
        with trio.fail_after(120):  # the others hold their places for 60
            assert await b.fetch(blob, [a.key], size_bytes=4, deadline=in_seconds(60)) == b"here"
        nursery.cancel_scope.cancel()


async def test_a_wrong_size_in_the_announcement_bans_nobody_silently(open_group: OpenGroup) -> None:
    """A header that names a size other than the blob's can never be satisfied: the fetch fails by its deadline."""
    async with open_group(2) as (a, b):
        blob = await a.provide(DATA[: 2 * MIB], expires=None)
        with pytest.raises(NetworkError, match="not here in time"):
            await b.fetch(blob, [a.key], size_bytes=3 * MIB, deadline=in_seconds(2))


async def test_a_size_above_4_gib_is_refused_before_anyone_is_asked(open_group: OpenGroup, tmp_path: Path) -> None:
    async with open_group(2) as (a, b):
        with pytest.raises(WireError, match="at most 4294967296"):
            await b.fetch(bytes(32), [a.key], size_bytes=(4 << 30) + 1, deadline=in_seconds(5))
        with pytest.raises(WireError, match="at most 4294967296"):
            await fetch_file(b, bytes(32), [a], tmp_path, 1 << 40)
        with pytest.raises(NetworkError, match="no room"):
            await b.fetch(bytes(32), [a.key], size_bytes=3 << 30, deadline=in_seconds(5))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
async def test_a_source_that_dies_costs_at_most_one_range(open_group: OpenGroup, tmp_path: Path, share: float) -> None:
    async with open_group(3, QUICK) as (a, b, c):
        path = tmp_path / "weights"
        path.write_bytes(DATA)
        blob = await a.provide(path, expires=None)
        assert await b.provide(path, expires=None) == blob
        died: list[int] = []

        def watch(present: int) -> None:
            if present >= share * len(DATA) and not died:
                died.append(present)
                a.set_allowed(frozenset())  # closes everybody and answers nobody any more

        found = await fetch_file(c, blob, [a, b], tmp_path / "copy", len(DATA), progress=watch)
        assert found.read_bytes() == DATA
        assert died
        chunk_lists = 2 * (8 + 32 * 13)
        assert c.statistics().bytes_received <= len(DATA) + ASK_CHUNKS * MIB + chunk_lists + 4_096
        assert c.banned() == {}


async def test_a_fetch_goes_on_where_it_was_interrupted(open_group: OpenGroup, tmp_path: Path) -> None:
    data = DATA[: 12 * MIB]
    async with open_group(2) as (a, b):
        path, folder = tmp_path / "weights", tmp_path / "folder"
        path.write_bytes(data)
        blob = await a.provide(path, expires=None)
        with trio.CancelScope() as scope:

            def stop(present: int) -> None:
                if present >= 5 * MIB:
                    scope.cancel()

            await fetch_file(b, blob, [a], folder, len(data), progress=stop)
        (part,) = folder.glob("*.part")
        spoil(part)
        before = b.statistics().bytes_received
        found = await fetch_file(b, blob, [a], folder, len(data))
        assert found.read_bytes() == data
        assert list(folder.iterdir()) == [found]
        fetched = b.statistics().bytes_received - before
        assert fetched < 9 * MIB, "at least four whole chunks were kept"
        assert fetched > 7 * MIB, "the chunk that was spoilt on disk was not"


def spoil(part: Path) -> None:
    """One byte of the first chunk differs, as after a power cut."""
    with part.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(struct.pack("B", first[0] ^ 1))


async def test_many_small_tensors_and_a_large_one_come_from_several_sources(
    open_group: OpenGroup, tmp_path: Path
) -> None:
    chance = random.Random(4)
    tensors = [chance.randbytes(chance.choice([0, 1, 64, 4_096, 50_000])) for _ in range(100)] + [DATA[: 5 * MIB]]
    async with open_group(3) as (a, b, c):
        folder = tmp_path / "snapshot"
        folder.mkdir()
        blobs: list[tuple[bytes, int]] = []
        for number, tensor in enumerate(tensors):
            path = folder / str(number)
            path.write_bytes(tensor)
            for node in (a, b):
                blob = await node.provide(path, expires=None)
            blobs.append((blob, len(tensor)))
        seen: list[int] = []
        found = await c.fetch_many(
            blobs, [a.key, b.key], tmp_path / "got", deadline=in_seconds(30), progress=seen.append
        )
        for (blob, size), tensor in zip(blobs, tensors, strict=True):
            assert found[blob].read_bytes() == tensor
            assert len(tensor) == size
        assert seen[-1] == sum(dict(blobs).values())
        before = c.statistics().bytes_received
        await c.fetch_many(blobs, [a.key, b.key], tmp_path / "got", deadline=in_seconds(30))
        assert c.statistics().bytes_received == before, "what is there is checked, not fetched"


async def test_ranges_out_of_bounds_are_refused_by_a_source(open_group: OpenGroup) -> None:
    async with open_group(2) as (a, b):
        blob = await a.provide(b"tiny", expires=None)
        async with b.peers.lease(a.key, "/psyche/blob/1") as lease:
            for request in (BlobRequest(blob, 1, 1), BlobRequest(blob, 0, 2), BlobRequest(blob, 0xFFFFFFFF, 16)):
                await lease.stream.write(encode_blob_request(request))
                assert await read_exactly(lease.stream, 9) == encode_reply_head(Status.REFUSED)
            await lease.stream.write(encode_blob_request(BlobRequest(bytes(32))))
            assert await read_exactly(lease.stream, 9) == encode_reply_head(Status.UNKNOWN)


async def test_a_full_disk_ends_the_fetch_with_its_reason(
    open_group: OpenGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_group(2) as (a, b):
        blob = await a.provide(DATA[: 2 * MIB], expires=None)
        monkeypatch.setattr("psyche.network.blobs.sinks.MIN_FREE_BYTES", 1 << 60)
        with pytest.raises(NetworkError, match="free up disk space"):
            await fetch_file(b, blob, [a], tmp_path / "x", 2 * MIB)
        monkeypatch.undo()
        monkeypatch.setattr("psyche.network.blobs.sinks._write_at", _no_space)
        with pytest.raises(NetworkError, match="No space left"):
            await fetch_file(b, blob, [a], tmp_path / "x", 2 * MIB)


def _no_space(*_args: object) -> None:
    raise OSError(28, "No space left on device")


async def test_two_fetches_of_one_payload_move_its_bytes_once(open_group: OpenGroup) -> None:
    data = DATA[: 3 * MIB]
    async with open_group(2) as (a, b):
        blob = await a.provide(data, expires=None)
        async with trio.open_nursery() as nursery:

            async def fetch() -> None:
                assert await b.fetch(blob, [a.key], size_bytes=len(data), deadline=in_seconds(20)) == data

            nursery.start_soon(fetch)
            nursery.start_soon(fetch)
        assert b.statistics().bytes_received < len(data) + 4_096
