"""Hello, sync and blob messages as bytes: what is written is read back, and nothing else is taken."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from network_kit import PLAN, RUN

from psyche.errors import NetworkError, WireError
from psyche.network import hello, sync
from psyche.network.addresses import table as addresses
from psyche.network.blobs import messages
from psyche.network.streams import StreamError, read_exactly, read_frame, write_frame
from psyche.testing.builders import build_identity
from psyche.wire.address_record import sign_address_record
from psyche.wire.backend import decode_backend_request
from psyche.wire.ports import SyncReply, SyncRequest

ME, OTHER = build_identity(1), build_identity(2)


class Tape:
    def __init__(self, data: bytes = b"", piece: int = 3) -> None:
        self.parts = deque(data[i : i + piece] for i in range(0, len(data), piece))
        self.written = b""

    async def read_some(self, max_bytes: int) -> bytes:
        if not self.parts:
            raise StreamError("at its end")
        part = self.parts.popleft()
        if len(part) > max_bytes:
            self.parts.appendleft(part[max_bytes:])
        return part[:max_bytes]

    async def write(self, data: bytes) -> None:
        self.written += data

    async def close(self) -> None:
        pass

    async def reset(self) -> None:
        pass


def build_hello(run: bytes = RUN, plan: bytes = PLAN, version: int = 1) -> hello.Hello:
    record = sign_address_record(ME, ["/ip4/1.2.3.4/tcp/5"], 1 << 40)
    return msgspec.structs.replace(hello.build_hello(run, plan, record), version=version)


async def test_a_frame_is_read_back_and_one_byte_too_much_is_not() -> None:
    tape = Tape()
    await write_frame(tape, b"abcdef")
    assert await read_frame(Tape(tape.written), 6, "frame") == b"abcdef"
    with pytest.raises(WireError, match="6 bytes announced, at most 5"):
        await read_frame(Tape(tape.written), 5, "frame")
    with pytest.raises(StreamError):
        await read_exactly(Tape(b"ab"), 3)


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        (build_hello(), build_hello(), ""),
        (build_hello(), build_hello(plan=bytes(32)), ""),
        (build_hello(plan=bytes(32)), build_hello(), ""),
        (build_hello(), build_hello(run=b"\x08" * 32), "another run"),
        (build_hello(), build_hello(plan=b"\x08" * 32), "another transform plan"),
        (build_hello(), build_hello(version=2), "protocol version 2, here 1"),
        (build_hello(run=bytes(32)), build_hello(run=bytes(32)), "this node does not know its run"),
    ],
)
def test_hellos_belong_together_or_the_reason_says_why_not(mine: hello.Hello, theirs: hello.Hello, reason: str) -> None:
    assert hello.get_refusal(mine, theirs).startswith(reason)
    assert bool(hello.get_refusal(mine, theirs)) == bool(reason)


def test_a_hello_with_a_broken_part_is_refused() -> None:
    good = build_hello()
    hello.check_hello(good, ME.public)
    with pytest.raises(WireError, match="another key"):
        hello.check_hello(good, OTHER.public)
    with pytest.raises(WireError, match="32 bytes"):
        hello.check_hello(msgspec.structs.replace(good, run_uid=b"short"), ME.public)
    with pytest.raises(WireError, match="17 capabilities, at most 16"):
        hello.check_hello(msgspec.structs.replace(good, capabilities=["x"] * 17), ME.public)
    forged = msgspec.structs.replace(good.record, expires_unix=5)
    with pytest.raises(WireError, match="signature"):
        hello.check_hello(msgspec.structs.replace(good, record=forged), ME.public)


async def test_a_hello_with_fields_of_a_later_version_is_read() -> None:
    raw = msgspec.msgpack.encode([*msgspec.to_builtins(build_hello(), builtin_types=(bytes,)), "later", 5])
    tape = Tape()
    await write_frame(tape, raw)
    answer = Tape(tape.written)
    with pytest.raises(StreamError):  # the tape has no verdict
        await hello.answer(answer, build_hello, lambda theirs: hello.get_refusal(build_hello(), theirs))
    assert answer.written


@given(st.binary(max_size=300))
async def test_bytes_that_are_no_hello_are_refused_cleanly(raw: bytes) -> None:
    tape = Tape()
    await write_frame(tape, raw)
    with pytest.raises((WireError, StreamError, hello.HelloRefused)):
        await hello.answer(Tape(tape.written), build_hello, lambda _: "no")


@given(
    kind=st.sampled_from(sync.KINDS), epoch=st.integers(0, 65_535), height=st.integers(0, (1 << 32) - 1),
    have=st.integers(0, (1 << 256) - 1), key=st.sampled_from([b"", b"k" * 32]),
)  # fmt: skip
def test_a_sync_request_is_read_back(kind: str, epoch: int, height: int, have: int, key: bytes) -> None:
    request = SyncRequest(kind, epoch, height, have, key)
    raw = sync.encode_sync_request(request)
    assert len(raw) <= 1_024
    assert sync.decode_sync_request(raw) == request


@pytest.mark.parametrize(
    "request_",
    [
        SyncRequest("secrets"),
        SyncRequest("table", epoch=70_000),
        SyncRequest("table", height=-1),
        SyncRequest("table", key=b"short"),
    ],
)
def test_a_sync_request_out_of_bounds_is_not_sent(request_: SyncRequest) -> None:
    with pytest.raises(WireError, match="sync request"):
        sync.encode_sync_request(request_)


def test_a_bitmap_of_too_many_members_is_not_sent() -> None:
    with pytest.raises(NetworkError, match="bitmap"):
        sync.encode_sync_request(SyncRequest("announcements", have=1 << 256))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_sync_message_are_refused_cleanly(raw: bytes) -> None:
    for decode in (sync.decode_sync_request, sync.decode_sync_reply):
        try:
            decode(raw)
        except WireError:
            continue


@given(st.booleans(), st.lists(st.binary(max_size=50), max_size=20))
def test_a_sync_reply_is_read_back(found: bool, items: list[bytes]) -> None:
    reply = SyncReply(found, tuple(items))
    assert sync.decode_sync_reply(sync.encode_sync_reply(reply)) == reply


def test_a_sync_reply_above_4_mib_is_refused_on_both_sides() -> None:
    items = (bytes(1 << 20),) * 4
    assert len(sync.encode_sync_reply(SyncReply(True, items))) <= sync.REPLY_FRAME_BYTES
    with pytest.raises(WireError, match="at most"):
        sync.encode_sync_reply(SyncReply(True, (*items, b"x")))
    with pytest.raises(WireError, match="at most"):
        sync.decode_sync_reply(msgspec.msgpack.encode([True, [*items, b"x"]]))


@given(blob=st.binary(min_size=32, max_size=32), first=st.integers(0, 4_095), count=st.integers(1, 16))
def test_a_blob_request_is_read_back(blob: bytes, first: int, count: int) -> None:
    for request in (messages.BlobRequest(blob, first, count), messages.BlobRequest(blob)):
        raw = messages.encode_blob_request(request)
        assert len(raw) == messages.REQUEST_BYTES
        assert messages.decode_blob_request(raw) == request


SEVENTEEN = messages.encode_blob_request(messages.BlobRequest(bytes(32), 0, 17))


@pytest.mark.parametrize("raw", [b"R" + bytes(40), b"M" + bytes(36) + b"\1\0\0\0", b"X" + bytes(40), SEVENTEEN])
def test_a_blob_request_of_another_kind_or_count_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError, match="blob request"):
        messages.decode_blob_request(raw)


async def test_a_reply_of_10_gb_is_refused_from_its_first_nine_bytes() -> None:
    head = messages.encode_reply_head(messages.Status.OK, 10 * 10**9)
    with pytest.raises(WireError, match="10000000000 bytes announced, must be 1048576"):
        await messages.read_reply_head(Tape(head), 1 << 20)
    with pytest.raises(WireError, match="unknown status 9"):
        await messages.read_reply_head(Tape(b"\x09" + bytes(8)), 0)
    with pytest.raises(WireError, match="5 bytes announced"):
        await messages.read_reply_head(Tape(b"\x01\x05" + bytes(7)), 1 << 20)


def test_a_chunk_list_of_another_size_is_refused() -> None:
    body = messages.encode_chunk_list(5, bytes(32))
    assert messages.decode_chunk_list(body, 5) == bytes(32)
    with pytest.raises(WireError, match="5 bytes, must be 6"):
        messages.decode_chunk_list(body, 6)


NESTED = b"\x91" * 1_100 + b"\xc0"  # a thousand arrays, each in the one before


@pytest.mark.parametrize(
    ("decode", "raw"),
    [
        (sync.decode_sync_request, NESTED),
        (sync.decode_sync_reply, b"\x93\xc3\x90" + NESTED),
        (sync.decode_sync_reply, NESTED),
        (addresses.decode_address_record, NESTED),
        (addresses.decode_address_record, b"\x93" + NESTED),
        (decode_backend_request, NESTED),
        (decode_backend_request, b"\x92\x01" + NESTED),
    ],
)
def test_a_message_nested_a_thousand_times_is_refused_as_any_other(decode: Callable[[bytes], Any], raw: bytes) -> None:
    with pytest.raises(WireError):
        decode(raw)


async def test_a_hello_nested_a_thousand_times_is_refused_as_any_other() -> None:
    with pytest.raises(WireError):
        await hello._read(Tape(len(NESTED).to_bytes(4, "little") + NESTED), hello._hello)
