"""A hub without sockets, threads or disk: connections are streams in memory that hold back as sockets do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from kits.log import Log
from kits.server import SERVER, Members, MemoryDisk, build_file, build_handler, build_join_request, build_record
from trio.testing import memory_stream_one_way_pair

from psyche.backends.tcp.push import apply_delta, read_full
from psyche.core.state.state import RunState
from psyche.errors import PsycheError
from psyche.server.connections.hub import Hub
from psyche.server.handler import CoordinatorHandler
from psyche.server.server import RunClock
from psyche.testing.builders import START_UNIX
from psyche.wire import backend as wire
from psyche.wire.address_record import AddressRecord
from psyche.wire.crypto import Identity
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import make_channel

CHANNEL = make_channel(SERVER)
BUFFER_BYTES = 65_536  # what an operating system keeps of unread bytes


class BoundedSender(trio.abc.SendStream):
    """Takes at most `capacity` bytes ahead of its reader."""

    def __init__(self, capacity: int) -> None:
        self._inner, receiver = memory_stream_one_way_pair()
        self._free = capacity
        self._news = trio.Event()
        self.reader = BoundedReader(self, receiver)

    def give_back(self, size_bytes: int) -> None:
        self._free += size_bytes
        self._news.set()
        self._news = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = bytes(data)
        while rest:
            while not self._free:
                await self._news.wait()
            part, rest = rest[: self._free], rest[self._free :]
            self._free -= len(part)
            await self._inner.send_all(part)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedReader(trio.abc.ReceiveStream):
    def __init__(self, sender: BoundedSender, inner: trio.abc.ReceiveStream) -> None:
        self._sender, self._inner = sender, inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = bytes(await self._inner.receive_some(max_bytes))
        self._sender.give_back(len(data))
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


def bounded_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """Two ends of a connection."""
    one, other = BoundedSender(BUFFER_BYTES), BoundedSender(BUFFER_BYTES)
    return trio.StapledStream(one, other.reader), trio.StapledStream(other, one.reader)


@dataclass
class Client:
    """A scripted client: sends what it is told, and follows the state."""

    identity: Identity
    stream: trio.abc.Stream
    frames: FrameStream
    raw: bytes = b""
    nonce: int = -1
    book: dict[bytes, AddressRecord] = field(default_factory=dict)
    pushes: list[wire.ServerMessage] = field(default_factory=list)
    ids: int = 0

    async def send(self, body: wire.RequestBody) -> int:
        self.ids += 1
        await self.frames.send(wire.encode_message(wire.Request(self.ids, body)), 60)
        return self.ids

    async def receive(self, timeout_s: float = 60) -> wire.ServerMessage:
        message = wire.decode_server_message(await self.frames.receive(timeout_s))
        if isinstance(message, wire.FullState):
            self.raw, self.nonce = read_full(message), message.nonce
        elif isinstance(message, wire.StateDelta) and message.from_nonce == self.nonce:
            self.raw, self.nonce = apply_delta(self.raw, self.nonce, message), message.to_nonce
        elif isinstance(message, wire.BookChange):
            known = {} if message.whole else {k: r for k, r in self.book.items() if k not in message.removed}
            self.book = known | {record.p2p: record for record in message.records}
        self.pushes.append(message)
        return message

    async def ask(self, body: wire.RequestBody) -> wire.Reply:
        number = await self.send(body)
        while True:
            message = await self.receive()
            if isinstance(message, wire.Reply) and message.id == number:
                return message

    async def subscribe(self) -> "Client":
        await self.ask(wire.SubscribeRequest())
        while not self.raw:
            await self.receive()
        return self

    async def join(self) -> wire.Reply:
        return await self.ask(build_join_request(build_record(self.identity)))

    async def read_to_the_end(self) -> wire.Goodbye | None:
        """Everything until the connection is closed; the goodbye, if there was one."""
        try:
            while True:
                await self.receive()
        except PsycheError:
            last = self.pushes[-1] if self.pushes else None
            return last if isinstance(last, wire.Goodbye) else None


class Rig:
    """A hub over a handler whose journal is written at once."""

    def __init__(self, nursery: trio.Nursery, **config: int) -> None:
        self.nursery = nursery
        self.sink = Log()
        file = build_file(**({"max_round_train_time": 3_600, "total_steps": 1_000} | config))
        self.disk = MemoryDisk()
        self.handler: CoordinatorHandler = build_handler(file.build_state(), self.disk, sink=self.sink)
        self.clock = RunClock(START_UNIX, START_UNIX)
        self.hub = Hub(self.handler, SERVER, self.clock.now, self.sink, self.flush)
        self.members = Members(self.handler)

    def flush(self) -> None:
        self.handler.journal.flush()
        self.hub.note_durable()
        if self.handler.version is not self.hub.published:
            self.hub.publish(self.handler.version)

    def tick(self) -> None:
        self.handler.tick(self.clock.now())
        self.flush()
        self.hub.note_book()

    async def start_training(self, clients: list[Client]) -> None:
        """All have joined: from here to the first round."""
        await trio.sleep(2)
        self.tick()
        self.members.now = self.clock.now()
        for client in clients:
            member = next(m for m in range(3) if self.members.key(m) == client.identity.public)
            assert (await client.ask(self.members.get_warmup(member))).code == ""
        assert self.handler.state.run_state is RunState.ROUND_TRAIN

    def open(self) -> trio.abc.Stream:
        """The client's end of a new connection."""
        server, client = bounded_pair()
        self.nursery.start_soon(self.hub.serve, server)
        return client

    async def connect(self, identity: Identity) -> Client:
        """A connection past hello."""
        return await self.greet(self.open(), identity)

    async def greet(self, stream: trio.abc.Stream, identity: Identity) -> Client:
        """The same over a stream that the hub serves."""
        frames = FrameStream(stream, wire.MAX_SERVER_FRAME_BYTES, max_send_bytes=1 << 20)
        await client_handshake(frames, identity, wire.PURPOSE, CHANNEL, SERVER.public, 60)
        client = Client(identity, stream, frames)
        assert (await client.ask(wire.HelloRequest(wire.VERSION, "test-run", "test"))).code == ""
        return client


@asynccontextmanager
async def open_rig(**config: int) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        yield Rig(nursery, **config)
        nursery.cancel_scope.cancel()
