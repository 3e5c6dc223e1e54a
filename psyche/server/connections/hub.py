"""The server's connections: accepting, serving, pushing states, and ending them."""

import math
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from psyche.errors import BackendError, WireError
from psyche.server.connections import limits
from psyche.server.connections.push import StateVersion, make_push
from psyche.server.handler import Answer, CoordinatorHandler
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink
from psyche.wire import backend as wire
from psyche.wire.crypto import Identity
from psyche.wire.line.framing import ConnectionLost, FrameStream
from psyche.wire.line.handshake import server_handshake
from psyche.wire.line.pace import HostTurns, TokenBucket
from psyche.wire.line.places import Place, Places, get_peer_host
from psyche.wire.line.tls import make_channel


@dataclass(eq=False)
class Connection:
    """One client connection; `key` is None until the handshake is done.

    A client that does not read makes nothing here grow: the number of answers is limited, and of the state and
    the address book only the last version sent is remembered.
    """

    frames: FrameStream
    number: int
    scope: trio.CancelScope
    key: bytes | None = None
    place: Place | None = None
    is_subscribed: bool = False
    sent: StateVersion | None = None  # None: the full state must be sent
    sent_book: int = -1
    reason: str = ""  # the reason for ending it
    goodbye: wire.Goodbye | None = None
    _answers: deque[Answer] = field(default_factory=deque)
    _wake: trio.Event = field(default_factory=trio.Event)
    _bucket: TokenBucket = field(
        default_factory=lambda: TokenBucket(limits.REQUESTS_PER_S, limits.REQUEST_BURST, trio.current_time())
    )

    @property
    def name(self) -> str:
        return f"#{self.number}" if self.key is None else f"#{self.number} {self.key.hex()[:16]}"

    def admit(self) -> None:
        """Count one request; refuse it if requests come too fast."""
        if not self._bucket.take(trio.current_time()):
            raise wire.Overloaded(f"more than {limits.REQUESTS_PER_S:g} requests a second")

    def add_answer(self, answer: Answer) -> None:
        """Queue an answer; it is sent once its journal record is on disk."""
        if len(self._answers) >= limits.MAX_REPLIES:
            raise wire.Overloaded(f"{limits.MAX_REPLIES} replies are unread")
        self._answers.append(answer)
        self.wake()

    @property
    def has_answers(self) -> bool:
        return bool(self._answers)

    def take_answer(self, durable_seq: int) -> Answer | None:
        if self._answers and self._answers[0].seq <= durable_seq:
            return self._answers.popleft()
        return None

    def subscribe(self) -> None:
        self.is_subscribed = True
        self.sent, self.sent_book = None, -1
        self.wake()

    def end(self, error: BackendError) -> None:
        """Send a goodbye and close; the first reason counts."""
        self.reason = self.reason or str(error)
        if self.goodbye is None:
            self.goodbye = wire.Goodbye(type(error).__name__, wire.shorten(str(error)))
            self.wake()

    def cancel(self, reason: str) -> None:
        """Close at once, without a goodbye."""
        self.reason = self.reason or reason
        self.scope.cancel()

    def wake(self) -> None:
        self._wake.set()

    async def wait(self) -> None:
        await self._wake.wait()
        self._wake = trio.Event()


class Hub:
    """All connections of a server; `now` is the run's clock, and `note_work` is called after each of the handler's."""

    def __init__(
        self,
        handler: CoordinatorHandler,
        identity: Identity,
        now: Callable[[], int],
        sink: EventSink,
        note_work: Callable[[], None],
    ) -> None:
        self.published: StateVersion = handler.version
        self._handler = handler
        self._channel = make_channel(identity)
        self._now = now
        self._sink = sink
        self._note_work = note_work
        self._open: dict[int, Connection] = {}
        self._places = Places(
            general=limits.MAX_UNAUTHENTICATED,
            per_host=limits.MAX_UNAUTHENTICATED_PER_HOST,
            per_key=limits.MAX_CONNECTIONS_PER_KEY,
            get_first=handler.get_first_keys,
        )
        self._turns = HostTurns()
        per_s, burst = limits.UNAUTHENTICATED_REQUESTS_PER_S, limits.UNAUTHENTICATED_BURST
        self._allowance = TokenBucket(per_s, burst, trio.current_time())
        self._subscribed: dict[bytes, Connection] = {}
        self._numbers = 0
        self._pushes: dict[tuple[int, int], bytes] = {}  # frames shared by subscribers that have the same version
        self._book_changes: dict[tuple[int, int], bytes] = {}
        self._book_told = 0

    def limit(self, places: int) -> None:
        self._places.most = places

    def publish(self, version: StateVersion) -> None:
        self.published = version
        self._pushes.clear()
        self._tell_book()

    def note_durable(self) -> None:
        """Note that more of the journal is on disk: answers that waited for it may be sent."""
        for connection in self._open.values():
            if connection.has_answers:
                connection.wake()

    def note_book(self) -> None:
        """Note that the address book may have changed; called on clock ticks, so that changes are sent together."""
        if self._handler.book.revision != self._book_told:
            self._tell_book()

    def end_disallowed(self) -> None:
        """End the subscriptions of keys that may no longer follow the run (M12)."""
        for key, connection in list(self._subscribed.items()):
            if connection.goodbye is None and not self._handler.may_follow(key):
                connection.end(self._handler.access.refuse(key, self._handler.now))

    def _tell_book(self) -> None:
        self._book_told = self._handler.book.revision
        self._book_changes.clear()
        for connection in self._subscribed.values():
            connection.wake()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends; never raises for faults of the other side."""
        self._numbers += 1
        frames = FrameStream(stream, wire.MAX_REQUEST_BYTES, max_send_bytes=wire.MAX_SERVER_FRAME_BYTES)
        with trio.move_on_after(math.inf) as scope:  # every wait in it has a timeout; other tasks may end it
            connection = Connection(frames, self._numbers, scope)
            place = connection.place = self._places.enter(get_peer_host(stream), connection.cancel)
            try:
                self._open[connection.number] = connection
                await self._talk(connection)
            finally:
                self._places.leave(place)
                self._forget(connection)
                await frames.aclose()  # forcefully: does not wait

    def _forget(self, connection: Connection) -> None:
        self._open.pop(connection.number, None)
        key = connection.key
        if key is not None and self._subscribed.get(key) is connection:
            del self._subscribed[key]
            is_member = self._handler.disconnected(key, self._now())
            reason = connection.reason or "server stops"
            self._sink.emit(types.ClientDisconnected(key=key, reason=reason, is_member=is_member))

    async def _talk(self, connection: Connection) -> None:
        async with trio.open_nursery() as nursery:
            greeted = trio.Event()
            nursery.start_soon(self._guard, connection, self._receive_all, greeted)
            await greeted.wait()
            nursery.start_soon(self._guard, connection, self._send_all)

    async def _guard(self, connection: Connection, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run one of a connection's tasks; a fault of the other side ends the connection."""
        try:
            await task(connection, *args)
        except ConnectionLost as error:
            connection.reason = connection.reason or str(error)
        except (WireError, BackendError) as error:  # malformed, oversized, slow, unauthenticated
            connection.reason = connection.reason or str(error)
            self._sink.emit(types.ConnectionClosed(connection=connection.name, reason=connection.reason))
        except Exception as error:  # noqa: BLE001  # a bug must not end the others
            connection.reason = connection.reason or f"internal error: {error!r}"
            self._sink.emit(types.ServerDefect(connection=connection.name, error=traceback.format_exc()))
        connection.scope.cancel()

    async def _receive_all(self, connection: Connection, greeted: trio.Event) -> None:
        frames = connection.frames
        key = connection.key = await server_handshake(frames, self._channel, wire.PURPOSE, limits.HANDSHAKE_TIMEOUT_S)
        assert connection.place is not None, "a connection is served in a place"
        self._places.identify(connection.place, key)
        hello = wire.decode_backend_request(await frames.receive(limits.HANDSHAKE_TIMEOUT_S))
        if not isinstance(hello.body, wire.HelloRequest):
            raise WireError(f"the first request is {type(hello.body).__name__}, must be HelloRequest")
        self._handle(connection, key, hello)
        greeted.set()
        while connection.goodbye is None:
            request = wire.decode_backend_request(await frames.receive(limits.IDLE_TIMEOUT_S))
            if key not in self._handler.get_first_keys():
                await self._wait_for_turn(connection)
            try:
                connection.admit()
                self._handle(connection, key, request)
            except wire.Overloaded as error:
                self._sink.emit(types.ConnectionClosed(connection=connection.name, reason=str(error)))
                connection.end(error)
        await trio.sleep_forever()  # the sender task says goodbye and ends this one

    async def _wait_for_turn(self, connection: Connection) -> None:
        """Wait until an unauthenticated peer's request may be answered (K7): addresses take turns."""
        async with self._turns.turn(connection.place.host if connection.place else ""):
            while not self._allowance.take(trio.current_time()):  # noqa: ASYNC110 - only time adds tokens
                await trio.sleep(1 / limits.UNAUTHENTICATED_REQUESTS_PER_S)

    def _handle(self, connection: Connection, key: bytes, request: wire.Request) -> None:
        if not connection.is_subscribed and not self._handler.may_visit(request.body):
            connection.add_answer(Answer(self._refuse_visitor(key, request), 0))
            return
        if isinstance(request.body, wire.SubscribeRequest) and self._handler.may_follow(key):
            self._subscribe(connection, key)
        answer = self._handler.handle(self._now(), key, request)
        connection.add_answer(answer)
        self._note_work()
        if isinstance(request.body, wire.HelloRequest) and answer.reply.code:
            connection.end(BackendError(answer.reply.message))

    def _refuse_visitor(self, key: bytes, request: wire.Request) -> wire.Reply:
        if self._handler.may_follow(key):
            return wire.Reply(request.id, "BadRequest", "subscribe first, so that the server notices a lost connection")
        error = self._handler.access.refuse(key, self._handler.now)
        return wire.Reply(request.id, type(error).__name__, str(error))

    def _subscribe(self, connection: Connection, key: bytes) -> None:
        former = self._subscribed.get(key)
        if former is not connection:
            self._subscribed[key] = connection
            self._handler.connected(key)
            self._sink.emit(types.ClientConnected(key=key))
            if former is not None:
                former.reason = "replaced by a newer connection with the same key"
                former.end(wire.Replaced("a newer connection with the same key has taken this one's place"))
        connection.subscribe()

    async def _send_all(self, connection: Connection) -> None:
        while True:
            frame = self._get_frame(connection)
            if frame is not None:
                await connection.frames.send(frame, limits.SEND_TIMEOUT_S)
            elif connection.goodbye is not None:
                await connection.frames.send(wire.encode_message(connection.goodbye), limits.GOODBYE_TIMEOUT_S)
                return
            else:
                await connection.wait()

    def _get_frame(self, connection: Connection) -> bytes | None:
        """Return the next frame to send: answers first, then the newest state, then the address book."""
        answer = connection.take_answer(self._handler.journal.durable_seq)
        if answer is not None:
            return wire.encode_message(answer.reply)
        if connection.goodbye is not None or not connection.is_subscribed:
            return None
        if connection.sent is not self.published:
            former, connection.sent = connection.sent, self.published
            return self._get_push(former)
        if connection.sent_book == self._handler.book.revision:
            return None
        former_book, connection.sent_book = connection.sent_book, self._handler.book.revision
        return self._get_book_change(former_book)

    def _get_book_change(self, former: int) -> bytes:
        place = (former, self._handler.book.revision)
        if place not in self._book_changes:
            self._book_changes[place] = wire.encode_message(self._handler.book.get_change(former))
        return self._book_changes[place]

    def _get_push(self, former: StateVersion | None) -> bytes:
        place = (-1 if former is None else former.nonce, self.published.nonce)
        if place not in self._pushes:
            push = make_push(former, self.published, self._now())
            self._pushes[place] = wire.encode_message(push)
        return self._pushes[place]
