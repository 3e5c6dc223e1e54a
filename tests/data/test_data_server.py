"""The data server: a client gets what it is assigned this round, whole; everybody else gets a reason."""

import itertools
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import memory_stream_pair

from psyche.backends.tcp.dial import dial, parse_server
from psyche.data import client as client_module
from psyche.data import server as server_module
from psyche.data.client import RemoteData
from psyche.data.local import TokenRows
from psyche.data.server import Audited, DataServer
from psyche.errors import DataError, HandshakeError, WireError
from psyche.testing.builders import build_identity
from psyche.wire.crypto import Identity
from psyche.wire.data import (
    MAX_REPLY_BYTES,
    PURPOSE,
    FetchRequest,
    Refused,
    Rows,
    decode_data_reply,
    decode_data_request,
    encode_data_reply,
    encode_data_request,
)
from psyche.wire.line.framing import ConnectionLost, FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import TlsConnection, make_channel

SERVER = build_identity("server")
ALICE = build_identity("alice")
BOB = build_identity("bob")
STRANGER = build_identity("stranger")
LENGTH = 4


def make_source(folder: Path, rows: int = 100) -> TokenRows:
    np.arange(rows * LENGTH).astype("<u2").tofile(folder / "tokens.bin")
    return TokenRows([folder], 2, LENGTH)


def make_server(folder: Path, **settings: int) -> DataServer:
    server = DataServer(make_source(folder), SERVER, **settings)
    server.set_assignments(3, 5, {ALICE.public: (10, 19), BOB.public: (20, 29)})
    return server


def expected(start: int, end: int) -> bytes:
    return np.arange(start * LENGTH, (end + 1) * LENGTH).astype("<u4").tobytes()


@asynccontextmanager
async def running(server: DataServer) -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(lambda task_status: server.serve("127.0.0.1", 0, task_status=task_status))
        yield f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def make_client(address: str, identity: Identity = ALICE, **settings: int) -> RemoteData:
    return RemoteData(address, identity, sequence_length=LENGTH, expected_server=SERVER.public, **settings)


@asynccontextmanager
async def serving(server: DataServer, *identities: Identity, **settings: int) -> AsyncIterator[list[RemoteData]]:
    """Clients of a server that listens on this machine."""
    async with running(server) as address:
        clients = [make_client(address, identity, **settings) for identity in identities or (ALICE,)]
        yield clients
        for client in clients:
            await client.aclose()


@asynccontextmanager
async def connected(server: DataServer, identity: Identity = ALICE) -> AsyncIterator[FrameStream]:
    """A client's end of an in-memory connection after the handshake."""
    ours, theirs = memory_stream_pair()
    frames = FrameStream(ours, MAX_REPLY_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handle, theirs)
        await client_handshake(frames, identity, PURPOSE, make_channel(SERVER), SERVER.public, 5)
        yield frames
        nursery.cancel_scope.cancel()


async def ask(frames: FrameStream, epoch: int, height: int, start: int, end: int) -> Rows | Refused:
    await frames.send(encode_data_request(FetchRequest(epoch, height, start, end)), 5)
    return decode_data_reply(await frames.receive(60))


async def test_a_client_gets_its_batch_and_any_part_of_it(tmp_path: Path) -> None:
    async with serving(make_server(tmp_path), ALICE, BOB) as (alice, bob):
        assert await alice.get(10, 19, epoch=3, height=5) == expected(10, 19)
        assert await bob.get(29, 29, epoch=3, height=5) == expected(29, 29)
        assert await alice.get(12, 13, epoch=3, height=5) == expected(12, 13)
        with pytest.raises(DataError, match=r"refuses: samples 20 to 29 are not yours"):
            await alice.get(20, 29, epoch=3, height=5)
        await alice.aclose()
        assert await alice.get(10, 10, epoch=3, height=5) == expected(10, 10)  # reconnects by itself


@pytest.mark.parametrize(
    ("identity", "epoch", "height", "start", "end", "reason"),
    [
        (ALICE, 3, 5, 9, 12, "not yours, 10 to 19"),
        (ALICE, 3, 5, 19, 20, "not yours"),
        (ALICE, 3, 5, 20, 29, "not yours"),
        (ALICE, 3, 5, 19, 10, "not yours"),
        (ALICE, 3, 4, 10, 19, r"round \(3, 4\) is not the running one, \(3, 5\)"),
        (ALICE, 2, 9, 10, 19, "is not the running one"),
        (STRANGER, 3, 5, 10, 19, "no samples are assigned to this key"),
    ],
)
async def test_everything_else_is_refused_with_a_reason(
    tmp_path: Path, identity: Identity, epoch: int, height: int, start: int, end: int, reason: str
) -> None:
    server = make_server(tmp_path)
    async with connected(server, identity) as frames:
        reply = await ask(frames, epoch, height, start, end)
        assert isinstance(reply, Refused)
        assert not reply.may_retry
        assert re.search(reason, reply.reason)
        if identity is STRANGER:
            with pytest.raises(ConnectionLost):
                await frames.receive(5)
        else:
            assert isinstance(await ask(frames, 3, 5, 10, 19), Rows)


async def test_a_client_that_sees_the_round_first_is_answered_when_it_begins(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = make_server(tmp_path)
    async with connected(server) as frames, trio.open_nursery() as nursery:

        async def begin() -> None:
            await trio.sleep(server_module.ROUND_WAIT_S - 1)
            server.set_assignments(3, 6, {ALICE.public: (30, 39)})

        nursery.start_soon(begin)
        reply = await ask(frames, 3, 6, 30, 39)
        assert isinstance(reply, Rows)
        assert (reply.start, reply.end) == (30, 39)
        early = await ask(frames, 4, 0, 0, 1)
        assert early == Refused("round (4, 0) is not the running one, (3, 6) (epoch, height)", may_retry=True)


async def test_members_without_samples_keep_their_connection(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    async with connected(server) as frames:
        server.set_assignments(3, 6, {}, members=[ALICE.public])  # a drain round
        assert isinstance(await ask(frames, 3, 6, 0, 0), Refused)
        server.set_assignments(4, 0, {ALICE.public: (40, 40)})
        assert isinstance(await ask(frames, 4, 0, 40, 40), Rows)


async def test_a_batch_larger_than_a_reply_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (client_module, server_module):
        monkeypatch.setattr(module, "MAX_ROWS_BYTES", 3 * LENGTH * 4)
    server = make_server(tmp_path)
    async with serving(server) as (alice,):
        assert await alice.get(10, 19, epoch=3, height=5) == expected(10, 19)
    async with connected(server) as frames:
        refused = await ask(frames, 3, 5, 10, 19)
        assert isinstance(refused, Refused)
        assert "ask for fewer" in refused.reason


async def test_strangers_make_room_for_one_another_and_never_for_a_member(tmp_path: Path) -> None:
    server = make_server(tmp_path, max_non_members=2)
    async with trio.open_nursery() as nursery, connected(server) as frames:
        ends: list[FrameStream] = []
        for _ in range(5):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(server.handle, theirs)
            ends.append(FrameStream(ours, 1_000))
            await trio.testing.wait_all_tasks_blocked()
        assert server._places.closed == 3
        assert isinstance(await ask(frames, 3, 5, 10, 10), Rows)
        async with connected(server, BOB) as late:
            assert isinstance(await ask(late, 3, 5, 20, 20), Rows), "a member that comes later is served too"
        nursery.cancel_scope.cancel()


async def test_requests_for_a_round_that_never_comes_hold_up_nobody(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_READS", 1)
    server = make_server(tmp_path)
    async with connected(server, BOB) as waiting, connected(server) as frames:
        await waiting.send(encode_data_request(FetchRequest(3, 9, 20, 20)), 5)
        await trio.testing.wait_all_tasks_blocked()
        asked_at = trio.current_time()
        assert isinstance(await ask(frames, 3, 5, 10, 10), Rows)
        assert trio.current_time() == asked_at, "on the test's own clock, which jumps"


async def test_a_stranger_that_asks_for_a_coming_round_is_refused_at_once_and_closed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = make_server(tmp_path)
    async with connected(server, STRANGER) as frames:
        asked_at = trio.current_time()
        refused = await ask(frames, 3, 9, 0, 0)
        assert isinstance(refused, Refused)
        assert trio.current_time() == asked_at
        with pytest.raises(ConnectionLost):
            await frames.receive(5)


async def test_the_newest_connection_of_a_key_replaces_the_older(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    async with connected(server) as first, connected(server) as second:
        assert isinstance(await ask(second, 3, 5, 10, 10), Rows)
        with pytest.raises(ConnectionLost):
            await first.receive(5)


@pytest.mark.parametrize("raw", [b"\xc1", b"\x94\x03\x05\x0a", bytes(300), b"\x94\x03\x05\xff\x13"])
async def test_a_malformed_request_costs_its_own_connection(tmp_path: Path, raw: bytes) -> None:
    server = make_server(tmp_path)
    async with connected(server) as other, connected(server, BOB) as bad:
        bad.max_send_bytes = 1_000
        await bad.send(raw, 5)
        with pytest.raises(ConnectionLost):
            await bad.receive(5)
        assert isinstance(await ask(other, 3, 5, 10, 10), Rows)


async def test_a_silent_connection_is_closed(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    server = make_server(tmp_path)
    _ours, theirs = memory_stream_pair()
    await server.handle(theirs)  # ends by itself: no handshake
    async with connected(server, STRANGER) as frames:
        with pytest.raises(ConnectionLost):
            await frames.receive(server_module.NON_MEMBER_TIMEOUT_S + 1)


class Flaky(TokenRows):
    """A source that fails as often as it is told."""

    failures = 0

    def samples(self, start: int, end: int) -> np.ndarray:
        if self.failures:
            self.failures -= 1
            raise DataError("disk: cannot be read")
        return super().samples(start, end)


async def test_a_server_that_cannot_read_for_three_tries_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.0,) * 7)
    make_source(tmp_path)
    source = Flaky([tmp_path], 2, LENGTH)
    server = DataServer(source, SERVER)
    server.set_assignments(0, 0, {ALICE.public: (0, 9)})
    async with serving(server) as (alice,):
        source.failures = 3
        assert await alice.get(0, 9) == expected(0, 9)
        source.failures = 7
        with pytest.raises(DataError, match=r"did not arrive in 7 tries.*cannot be read"):
            await alice.get(0, 9)


async def test_a_server_that_is_down_is_tried_seven_times_with_growing_waits(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    tries: list[float] = []

    async def refuse(*_: object) -> None:
        tries.append(trio.current_time())
        raise OSError("connection refused")

    monkeypatch.setattr(trio, "open_tcp_stream", refuse)
    with pytest.raises(DataError, match="did not arrive in 7 tries; the last problem: connection refused"):
        await make_client("127.0.0.1:1").get(0, 9)
    waits = [b - a for a, b in itertools.pairwise(tries)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]


async def test_a_server_that_was_down_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.0,) * 7)
    server = make_server(tmp_path)
    async with running(server) as address:
        alice = make_client(address)
        assert await alice.get(10, 10, epoch=3, height=5) == expected(10, 10)
    port = int(address.split(":")[1])
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: server.serve("127.0.0.1", port, task_status=task_status))
        assert await alice.get(10, 19, epoch=3, height=5) == expected(10, 19)
        await alice.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r: Rows(r.start, r.end, LENGTH, 2, r.ids[:-8]), "bytes of ids for samples 10 to 19"),
        (lambda r: Rows(r.start, r.end - 1, LENGTH, 2, r.ids[:-8]), "samples 10 to 18 were not requested"),
        (lambda r: Rows(r.start, r.end, 2, 4, r.ids), "rows have 2 ids, but the model needs 4"),
        (lambda r: Rows(r.start, r.end, LENGTH, 3, r.ids), "token_size_bytes 3, must be 2, 4 or 12"),
    ],
)
async def test_short_or_other_rows_are_never_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Rows], Rows], reason: str
) -> None:
    monkeypatch.setattr(client_module, "BACK_OFF_S", (0.0,) * 7)
    server = make_server(tmp_path)

    async def send(frames: FrameStream, request: FetchRequest) -> None:
        ids = np.arange(request.start * LENGTH, (request.end + 1) * LENGTH).astype("<u2").tobytes()
        await frames.send(encode_data_reply(change(Rows(request.start, request.end, LENGTH, 2, ids))), 5)

    monkeypatch.setattr(server, "_send_rows", send)
    async with serving(server) as (alice,):
        with pytest.raises(DataError, match=reason):
            await alice.get(10, 19, epoch=3, height=5)


async def test_ids_beyond_the_vocabulary_are_refused_with_their_place(tmp_path: Path) -> None:
    async with serving(make_server(tmp_path), vocab_size=42) as (alice,):
        with pytest.raises(DataError, match=r"token 42 at position 2 of sample 10 is not below .* 42"):
            await alice.get(10, 19, epoch=3, height=5)


async def test_another_server_at_the_address_is_not_asked_again(tmp_path: Path) -> None:
    async with running(make_server(tmp_path)) as address:
        alice = RemoteData(address, ALICE, sequence_length=LENGTH, expected_server=BOB.public)
        with pytest.raises(DataError, match="another server answers"):
            await alice.get(10, 19, epoch=3, height=5)


async def test_a_cancelled_fetch_does_not_spoil_the_next(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    server = make_server(tmp_path)
    pairs = []

    async def connect(*_: object) -> TlsConnection:
        ours, theirs = memory_stream_pair()
        pairs.append(ours)
        nursery.start_soon(server.handle, theirs)
        return TlsConnection(ours, make_channel(SERVER))

    async with trio.open_nursery() as nursery:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client_module, "open_tls", connect)
            alice = make_client("h:1")
            with trio.move_on_after(1) as scope:
                await alice.get(10, 11, epoch=3, height=6)  # held: the round has not begun
            assert scope.cancelled_caught
            assert await alice.get(10, 11, epoch=3, height=5) == expected(10, 11)
            assert len(pairs) == 2  # the reply to the first is not taken for that to the second
            await alice.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (3, 2), (0, 65_535)])
async def test_bounds_are_checked_before_anything_is_sent(start: int, end: int) -> None:
    with pytest.raises(DataError, match=f"samples {start} to {end}"):
        await make_client("127.0.0.1:1").get(start, end)
    with pytest.raises(DataError, match="host:port"):
        make_client("localhost")


async def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    async with running(server) as address:
        with pytest.raises(DataError, match=f"cannot listen on {address}"):
            await server.serve("127.0.0.1", int(address.split(":")[1]))


def test_messages_survive_their_bytes_and_nothing_else_does() -> None:
    request = FetchRequest(65_535, 1 << 31, 5, 1 << 60)
    assert decode_data_request(encode_data_request(request)) == request
    for reply in (Rows(3, 4, 2, 2, bytes(8)), Refused("why", may_retry=True)):
        assert decode_data_reply(encode_data_reply(reply)) == reply
    with pytest.raises(WireError, match="data request"):
        decode_data_request(encode_data_request(FetchRequest(65_536, 0, 0, 0)))
    with pytest.raises(WireError, match="data reply"):
        decode_data_reply(encode_data_reply(Rows(4, 3, 2, 2, b"")))
    with pytest.raises(WireError, match="data reply"):
        decode_data_reply(b"\x92\x05\x00")


async def test_whoever_takes_its_port_for_that_of_the_run_s_server_is_told_the_other_one(tmp_path: Path) -> None:
    async with running(make_server(tmp_path)) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(
            HandshakeError, match=rf"the port of the run's data.*--server-addr 127\.0\.0\.1:{port - 1}$"
        ):
            await dial(parse_server(address), ALICE)


async def test_samples_of_a_round_before_are_for_its_auditors_alone(tmp_path: Path) -> None:
    """V8: the round's own samples stay its trainers'."""
    server = make_server(tmp_path)
    audited = {4: Audited(0, 9, frozenset({BOB.public}))}
    server.set_assignments(3, 5, {ALICE.public: (10, 19)}, [BOB.public], audited)
    async with serving(server, ALICE, BOB) as (alice, bob):
        assert await bob.get(2, 3, epoch=3, height=4) == expected(2, 3)
        for client, epoch, first, last in ((alice, 3, 2, 3), (bob, 3, 9, 10), (bob, 2, 2, 3)):
            with pytest.raises(DataError, match="is not the running one"):
                await client.get(first, last, epoch=epoch, height=4)
