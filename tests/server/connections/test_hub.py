"""Connections: slow, oversized, malformed, flooding and doubled ones end, and nobody else notices."""

import contextlib
import struct

import pytest
import trio
from hub_kit import CHANNEL, Client, Rig, open_rig
from kits.server import CLIENTS, OWNER, SERVER, build_record
from trio.testing import MockClock

from psyche.core.encoding.account import encode_state
from psyche.core.state.messages import LeaveRun, Pause, Resume
from psyche.core.state.state import ClientState
from psyche.errors import HandshakeError, PsycheError
from psyche.server.access import AccessChanges, AllowList
from psyche.server.connections import hub as hub_module
from psyche.server.connections import limits
from psyche.telemetry import types
from psyche.testing.builders import build_identity
from psyche.wire import backend as wire
from psyche.wire.access import Access, Allow
from psyche.wire.crypto import Identity
from psyche.wire.line.framing import ConnectionLost, FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.pace import TokenBucket

STRANGER = build_identity("stranger")


async def open_members(rig: Rig) -> list[Client]:
    """Three subscribed clients that have joined."""
    clients = [await (await rig.connect(identity)).subscribe() for identity in CLIENTS[:3]]
    for client in clients:
        assert (await client.join()).code == ""
    return clients


async def assert_well(rig: Rig, clients: list[Client]) -> None:
    """Nobody has noticed anything: all are connected, healthy, and see the newest state."""
    rig.members.now = rig.clock.now()
    for client in clients:
        assert (await client.ask(wire.PingRequest())).code == ""
        while client.nonce < rig.hub.published.nonce:
            await client.receive()
        assert client.raw == encode_state(rig.handler.state)
    assert [c.state for c in rig.handler.state.clients] == [ClientState.HEALTHY] * len(rig.handler.state.clients)


def get_reasons(rig: Rig) -> str:
    return " | ".join(event.reason for event in rig.sink.get(types.ConnectionClosed))


async def test_a_subscriber_gets_the_whole_state_and_then_every_change_as_delta(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        await rig.start_training(clients)
        await assert_well(rig, clients)
        kinds = [type(message) for message in clients[0].pushes]
        assert kinds.count(wire.FullState) == 1
        assert kinds.count(wire.StateDelta) > 2


async def test_everybody_gets_the_address_book_and_its_changes(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        moved = build_record(CLIENTS[1], port=5_555)
        assert (await clients[1].ask(wire.AnnounceRequest(moved))).code == ""
        assert (await clients[1].ask(wire.build_submit(LeaveRun()))).code == ""
        rig.tick()
        await trio.sleep(1)
        with trio.move_on_after(1):
            while True:
                await clients[0].receive()
        assert set(clients[0].book) == {CLIENTS[0].public, CLIENTS[2].public}
        assert any(isinstance(m, wire.BookChange) and moved in m.records for m in clients[0].pushes)


async def test_nothing_leaves_before_its_record_is_on_disk(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        await rig.start_training(clients)
        await assert_well(rig, clients)
        published = rig.hub.published
        rig.hub._note_work = lambda: None  # the disk is busy
        await clients[0].send(rig.members.get_witness(_member_of(rig, clients[0])))
        with trio.move_on_after(5) as scope:
            while True:
                assert not isinstance(await clients[0].receive(), wire.Reply | wire.StateDelta)
        assert scope.cancelled_caught
        assert rig.handler.version is not published, "the state has changed"
        rig.flush()
        assert isinstance(await clients[0].receive(), wire.Reply)


def _member_of(rig: Rig, client: Client) -> int:
    return next(m for m in range(3) if rig.members.key(m) == client.identity.public)


async def test_a_silent_connection_is_closed_before_and_after_the_handshake(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        mute = rig.open()
        quiet = await rig.connect(STRANGER)
        for _ in range(8):
            await trio.sleep(5)
            await assert_well(rig, clients)
        assert get_reasons(rig).count("within 10 s") == 1
        assert get_reasons(rig).count("within 30 s") == 1
        assert await quiet.read_to_the_end() is None
        with pytest.raises(trio.BrokenResourceError):
            await mute.send_all(b"x")


async def test_a_client_that_reads_nothing_is_closed_and_the_others_go_on(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        lazy = await rig.connect(STRANGER)
        for _ in range(300):  # asks for the whole state again and again, reads nothing of it
            await lazy.send(wire.SubscribeRequest())
            await trio.sleep(0.3)
            await assert_well(rig, clients)
            if rig.sink.get(types.ConnectionClosed):
                break
        assert "not taken within 10 s" in get_reasons(rig)
        await assert_well(rig, clients)


async def test_answers_that_are_not_read_are_bounded(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        lazy = await rig.connect(STRANGER)
        rig.handler.journal.durable_seq = -1  # no answer can leave
        with contextlib.suppress(ConnectionLost):
            for _ in range(limits.MAX_REPLIES + 2):
                await lazy.send(wire.StatusRequest())
                await trio.sleep(0.1)
        assert "replies are unread" in get_reasons(rig)
        rig.handler.journal.durable_seq = rig.handler.journal.last_seq
        rig.hub.note_durable()
        await assert_well(rig, clients)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack("<I", wire.MAX_REQUEST_BYTES + 1), "8193 bytes announced, at most 8192"),
        (struct.pack("<I", 0xFFFF_FFFF), "4294967295 bytes announced"),
        (struct.pack("<I", 5) + b"hello", "request: "),
        (struct.pack("<I", 0), "request: "),
        (struct.pack("<I", 9) + b"\xc1" * 9, "request: "),
    ],
    ids=["oversized", "huge", "no message", "empty", "no msgpack"],
)
async def test_oversized_and_malformed_frames_end_their_own_connection(
    raw: bytes, reason: str, autojump_clock: MockClock
) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        bad = await (await rig.connect(STRANGER)).subscribe()
        await bad.stream.send_all(raw)
        await bad.read_to_the_end()
        assert reason in get_reasons(rig)
        await assert_well(rig, clients)


async def test_a_members_malformed_witness_ends_its_connection_but_not_its_membership(
    autojump_clock: MockClock,
) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        await rig.start_training(clients)
        await clients[2].send(wire.SubmitRequest(6, bytes(700)))
        await clients[2].read_to_the_end()
        assert "WitnessMessage" in get_reasons(rig)
        again = await (await rig.connect(CLIENTS[2])).subscribe()
        await assert_well(rig, [*clients[:2], again])


async def test_a_flood_of_requests_ends_its_own_connection_with_a_reason(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        flood = await rig.connect(STRANGER)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send() -> None:
                try:
                    for _ in range(1_000):
                        await flood.send(wire.PingRequest())
                except PsycheError:
                    return

            goodbye = await flood.read_to_the_end()
        assert goodbye is not None
        assert goodbye.code == "Overloaded"
        assert "requests a second" in get_reasons(rig)
        await assert_well(rig, clients)


async def test_the_first_request_must_be_hello(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        frames = FrameStream(rig.open(), 1 << 20)
        await client_handshake(frames, STRANGER, wire.PURPOSE, CHANNEL, SERVER.public, 60)
        await frames.send(wire.encode_message(wire.Request(1, wire.StatusRequest())), 60)
        await Client(STRANGER, frames._stream, frames).read_to_the_end()
        assert "must be HelloRequest" in get_reasons(rig)


async def test_bytes_that_are_no_handshake_end_their_own_connection(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        for raw in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 20) + bytes(20), b"\xff" * 4):
            stream = rig.open()
            await stream.send_all(raw)
            await trio.sleep(0.1)
        stranger = FrameStream(rig.open(), 1 << 20)
        with pytest.raises(HandshakeError):
            await client_handshake(stranger, STRANGER, "data", CHANNEL, SERVER.public, 60)
        await trio.sleep(0.1)
        assert len(rig.sink.get(types.ConnectionClosed)) == 4
        await assert_well(rig, clients)


async def test_a_visitor_cannot_act_as_a_member(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        visitor = await rig.connect(CLIENTS[0])
        reply = await visitor.join()
        assert (reply.code, "subscribe first" in reply.message) == ("BadRequest", True)
        assert (await visitor.ask(wire.StatusRequest())).code == ""


async def test_an_owners_command_does_not_push_aside_the_client_with_the_same_key(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        rig.handler.owners = frozenset({CLIENTS[0].public})
        clients = await open_members(rig)
        command = await rig.connect(CLIENTS[0])
        assert (await command.ask(wire.build_submit(Pause(), op_id=bytes(16)))).code == ""
        assert (await command.ask(wire.build_submit(Resume(), op_id=bytes([1]) * 16))).code == ""
        await command.frames.aclose()
        await trio.sleep(1)
        assert rig.sink.get(types.ClientDisconnected) == []
        assert (await clients[0].ask(wire.PingRequest())).code == ""


@pytest.mark.parametrize("reads", [True, False], ids=["alive", "dead and not noticed"])
async def test_a_second_connection_with_the_same_key_takes_the_first_ones_place(
    reads: bool, autojump_clock: MockClock
) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        await rig.start_training(clients)
        second = await (await rig.connect(CLIENTS[1])).subscribe()
        if reads:
            goodbye = await clients[1].read_to_the_end()
            assert goodbye is not None
            assert goodbye.code == "Replaced"
        for _ in range(10):
            await trio.sleep(4)
            rig.tick()
            await assert_well(rig, [clients[0], second, clients[2]])
        assert rig.handler.get_status().connections == 3
        assert rig.sink.get(types.ClientDisconnected) == [], "the key was there all the time"


async def test_a_lost_connection_is_withdrawn_only_after_the_grace(autojump_clock: MockClock) -> None:
    async with open_rig() as rig:
        clients = await open_members(rig)
        await rig.start_training(clients)
        await clients[1].frames.aclose()
        await trio.sleep(14)
        rig.tick()
        await assert_well(rig, [clients[0], clients[2]])
        await trio.sleep(2)
        rig.tick()
        states = {c.p2p: c.state for c in rig.handler.state.clients}
        assert states[CLIENTS[1].public] is ClientState.WITHDRAWN
        assert rig.sink.get(types.ClientDisconnected)[0].key == CLIENTS[1].public


@pytest.mark.parametrize("who", [CLIENTS[0], OWNER, STRANGER], ids=["member", "owner", "join authority"])
async def test_a_preferred_key_is_answered_while_strangers_hold_all_places(
    who: Identity, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module.limits, "MAX_UNAUTHENTICATED", 3)
    async with open_rig() as rig:
        rig.handler.access = AllowList(Access(True, STRANGER.public), AccessChanges(), OWNER.public)
        clients = await open_members(rig)
        for _ in range(4):
            rig.open()  # and says nothing
        await clients[0].frames.aclose()
        client = await rig.connect(who)
        for _ in range(4):
            rig.open()
        await trio.sleep(0.1)
        may_allow = wire.build_submit(Allow(CLIENTS[0].public), op_id=bytes(16))
        assert (await client.ask(wire.PingRequest() if who is CLIENTS[0] else may_allow)).code == ""
        assert len(rig.hub._open) == 2 + 1 + 3, "the oldest strangers made room for the newest"
        await assert_well(rig, clients[1:])


async def ask_often(client: Client, answered: list[Identity], count: int = 10) -> None:
    """Send requests as one goes, and note each answer."""
    numbers = [await client.send(wire.StatusRequest()) for _ in range(count)]
    while numbers:
        message = await client.receive()
        if isinstance(message, wire.Reply) and message.id == numbers[0]:
            answered.append(client.identity)
            del numbers[0]


async def test_strangers_share_what_is_answered_and_members_do_not_wait(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module.limits, "UNAUTHENTICATED_BURST", 5.0)
    async with open_rig() as rig:
        clients = await open_members(rig)
        answered: list[Identity] = []
        crowd = [await rig.connect(build_identity(60 + number)) for number in range(10)]
        async with trio.open_nursery() as nursery:
            for stranger in crowd:
                nursery.start_soon(ask_often, stranger, answered)
            for _ in range(10):
                await assert_well(rig, clients)
            assert len(answered) <= 5, "all that may be answered at once"
        assert len(answered) == 100, "who waits is answered in its turn"


async def test_addresses_of_strangers_take_turns_in_being_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module.limits, "UNAUTHENTICATED_REQUESTS_PER_S", 20.0)
    monkeypatch.setattr(hub_module.limits, "UNAUTHENTICATED_BURST", 1.0)
    async with open_rig() as rig:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        rig.nursery.start_soon(trio.serve_listeners, rig.hub.serve, listeners)
        port = listeners[0].socket.getsockname()[1]

        async def connect(number: int, address: str) -> Client:
            stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=address)
            return await rig.greet(stream, build_identity(60 + number))

        crowd = [await connect(number, "127.0.0.1") for number in range(20)]
        other = await connect(99, "127.0.0.2")
        answered: list[Identity] = []
        async with trio.open_nursery() as nursery:
            for stranger in crowd:
                nursery.start_soon(ask_often, stranger, answered)
            while not answered:
                await trio.sleep(0.01)
            before = len(answered)
            await other.ask(wire.StatusRequest())
            assert len(answered) <= before + 3, "one turn, and what was on its way"
            nursery.cancel_scope.cancel()


def test_tokens_come_back_with_time() -> None:
    bucket = TokenBucket(2.0, 4.0, 100.0)
    assert [bucket.take(100.0) for _ in range(5)] == [True] * 4 + [False]
    assert bucket.take(100.5)
    assert not bucket.take(100.6)
    assert [bucket.take(1_000.0) for _ in range(5)] == [True] * 4 + [False]
