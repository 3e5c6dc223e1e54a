"""The `Backend` over TCP: a client of the coordinator server that reconnects by itself.

It uses one connection at a time. While `run` runs, a lost connection is reopened with back-off; requests without
an answer are resent under their old ids (K4), the subscription and the address record are renewed, and the
caller notices only the delay.
"""

import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from psyche.backends.tcp.dial import Connect, ServerAddress, dial
from psyche.backends.tcp.push import apply_delta, read_full
from psyche.backends.waits import BackendStatistics, NamedWaits, Progress, describe_wrong_clock, opens
from psyche.core.encoding.account import decode_state
from psyche.core.state.state import Coordinator
from psyche.errors import BackendError, HandshakeError, PsycheError, WireError
from psyche.telemetry import types
from psyche.telemetry.sink import EventSink, NoEvents
from psyche.wire import backend as wire
from psyche.wire.address_record import AddressRecord, check_address_record
from psyche.wire.backend import AnyMessage
from psyche.wire.crypto import Identity
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import WrongServer
from psyche.wire.line.tls import open_tls
from psyche.wire.line.turns import AtOnce
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Proof
from psyche.wire.report import SelfReport

MAX_PENDING: Final = 32  # half the number of replies that the server keeps for resends (K4)
PING_S: Final = 5.0
SILENCE_S: Final = 20.0  # the server answers every ping: four unanswered in a row mean a dead connection
SEND_TIMEOUT_S: Final = 10.0
BACK_OFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # H6 allows 15 s to reconnect
HINT_TRIES: Final = 3  # after so many in vain, what to check is said
HASTE_S: Final = 0.5  # once peers are in a later round, which waits 2 s at least for who is missing (A3)
ALLOWED_AGAIN_S: Final = (1.0, 2.0, 5.0, 10.0)  # a key that is not on the allow list asks again after this
_FATAL: Final = (HandshakeError, wire.RequestRefused, wire.Replaced)


@dataclass(eq=False, slots=True)
class _Pending:
    id: int
    frame: bytes
    answered: trio.Event = field(default_factory=trio.Event)
    reply: wire.Reply | None = None


@dataclass(frozen=True, slots=True)
class Platform:
    """The client's interface to its machine."""

    connect: Connect = open_tls  # connects to a host and a port, or raises OSError or WireError
    unix_time: Callable[[], float] = time.time  # the wall clock
    rng: random.Random = field(default_factory=random.SystemRandom)  # of request ids and jitter
    decode: Callable[[bytes], Coordinator] = decode_state  # decodes a state; called in a thread


class TcpBackend:
    """A `Backend` over TCP. `run` must be running while it is used (or use `open_backend`).

    Every call waits until the server has answered, even if the connection is lost repeatedly: use a cancel scope to
    set a timeout. It raises the coordinator's own error, or `BackendError` once it has given up for good (another
    server or run, another protocol version, another process with the same key).

    `identity` is both signer and p2p key; `follows_at_once`: subscribe when connected, not only once it is used.
    """

    def __init__(
        self, address: ServerAddress, identity: Identity, *, sink: EventSink | None = None,
        platform: Platform | None = None, follows_at_once: bool = True,
    ) -> None:  # fmt: skip
        self.address = address
        self.connects = 0
        self._identity = identity
        self._sink = sink or NoEvents()
        self._platform = platform or Platform()
        self._next_id = self._platform.rng.getrandbits(62)  # the server may remember ids of an earlier process
        self._pending: dict[int, _Pending] = {}
        self._outbox: list[bytes] = []
        self._room = trio.Semaphore(MAX_PENDING)
        self._wake = trio.Event()
        self._progress = Progress(self._explain_failure)
        self._is_connected = False
        self._raw = b""
        self._nonce = -1
        self._run_uid: bytes | None = None
        self._subscription = -1  # the request that subscribes to the run
        self._is_following = follows_at_once
        self._refusals = 0  # refusals in a row, because the owner has not allowed this key yet (M12)
        self._refused = trio.Event()
        self._hastened = trio.Event()
        self._refusal = ""  # the server's reason
        self._waits = NamedWaits(self._sink)
        self._record: AddressRecord | None = None
        self._report: SelfReport | None = None
        self._book: dict[bytes, AddressRecord] = {}
        self._listed: tuple[AddressRecord, ...] = ()  # the book's records; the same object until one changes

    async def run(self) -> None:
        try:
            await self._keep_connected()
        except _FATAL as error:
            self._sink.emit(types.BackendGivenUp(reason=str(error)))
            self._fail(error)
            raise
        finally:
            self._fail(BackendError("the client's connection to the server was stopped"))

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            started_s = trio.current_time()
            try:
                await self._connect_once()
            except (BackendError, WireError) as error:
                if isinstance(error, _FATAL) and not (isinstance(error, WrongServer) and self.connects):
                    raise  # knowing the right key, it assumes a man in the middle and retries
                self._note_lost(error, failures)
            if trio.current_time() - started_s > BACK_OFF_S[-1]:  # back off if the server closes at once
                failures = 0
            await self._back_off(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])
            failures += 1

    async def _back_off(self, delay_s: float) -> None:
        """Wait before the next try; chance spreads the clients' tries. One `reconnect_soon` hastens one try."""
        spread = self._platform.rng.uniform
        with trio.move_on_after(delay_s * spread(0.5, 1.0)):
            await self._hastened.wait()
            self._hastened = trio.Event()
            await trio.sleep(HASTE_S * spread(0.5, 1.0))

    async def reach(self) -> None:
        await self._progress.wait_until(lambda: self.connects)

    def _follow(self) -> None:
        """Subscribe, now and on every new connection: for the server a client is there only then (H6)."""
        if not self._is_following and self._is_connected:
            self._subscribe()
        self._is_following = True

    def _subscribe(self) -> None:
        self._send(self._encode(wire.SubscribeRequest()))
        self._subscription = self._next_id

    async def states(self) -> AsyncGenerator[Coordinator, None]:
        seen = -1
        self._follow()
        while True:
            await self._progress.wait_until(lambda: self._nonce > seen)  # noqa: B023
            raw, seen = self._raw, self._nonce
            yield await trio.to_thread.run_sync(self._platform.decode, raw)

    async def submit(self, message: AnyMessage, proof: Proof = None) -> None:
        """Submit a message; the address record of a join is announced again after every reconnect."""
        if isinstance(proof, AddressRecord):
            self._record = proof
        await self._request(wire.build_submit(message, proof))

    async def announce(self, record: AddressRecord) -> None:
        self._record = record
        await self._request(wire.AnnounceRequest(record))

    async def ask_data_manifest(self, start: int) -> tuple[int, bytes]:
        body = (await self._request(wire.DataManifestRequest(start))).body
        return (body.size_bytes, body.data) if isinstance(body, wire.DataManifestPart) else (0, b"")

    def statistics(self) -> BackendStatistics:
        return BackendStatistics(unanswered=len(self._pending))

    def reconnect_soon(self) -> None:
        if not self._is_connected:
            self._hastened.set()

    def report(self, report: SelfReport) -> None:
        self._report = report
        self._follow()
        if types.Wait.PERMISSION not in self._waits:
            self._send(self._encode(wire.ReportRequest(report)))

    def get_addresses(self) -> Sequence[AddressRecord]:
        return self._listed

    async def _request(self, body: wire.RequestBody) -> wire.Reply:
        async with AtOnce(self._room):
            self._progress.check_alive()
            self._follow()
            self._next_id += 1
            pending = _Pending(self._next_id, wire.encode_message(wire.Request(self._next_id, body)))
            self._pending[pending.id] = pending
            self._send(pending.frame)
            try:
                await pending.answered.wait()
            finally:
                self._pending.pop(pending.id, None)
        reply = pending.reply
        if reply is None:
            self._progress.check_alive()
        assert reply is not None, "answered, or given up"
        if reply.code and not reply.on_record:
            raise wire.error_from_code(reply.code, reply.message, reply.rule)
        return reply

    def _send(self, frame: bytes) -> None:
        if self._is_connected:
            self._outbox.append(frame)
            self._wake.set()

    def _explain_failure(self, reason: PsycheError) -> BackendError:
        return BackendError(f"server {self.address.host}:{self.address.port}: {reason}")

    def _fail(self, error: PsycheError) -> None:
        """Make every call raise from now on; the first reason counts."""
        self._progress.fail(error)
        for pending in self._pending.values():
            pending.answered.set()

    async def _connect_once(self) -> None:
        frames, server, greeting = await dial(self.address, self._identity, self._platform.connect)
        try:
            self.address = replace(self.address, key=server)  # trust on first use if no key was expected (K6)
            self._check_greeting(greeting)
            self.connects += 1
            self._waits.end(types.Wait.BACKEND, types.WaitOutcome.CONNECTED)
            self._renew()
            self._sink.emit(types.BackendConnected(run_id=greeting.run_id, program=greeting.program))
            self._progress.note_change()
            await self._talk(frames)
        finally:
            self._is_connected = False
            await frames.aclose()  # forcefully: does not wait

    def _check_greeting(self, greeting: wire.Greeting) -> None:
        if self._run_uid not in (None, greeting.run_uid):
            raise wire.WrongRun(
                f"the run {greeting.run_id!r} was created again while this client took part in the old one: "
                "start this client again"
            )
        if not self.connects:
            server = f"the server {self.address.host}:{self.address.port}"
            if message := describe_wrong_clock(self._platform.unix_time(), greeting.now_unix, server):
                self._sink.emit(types.ClockWrong(message=message))
        self._run_uid = greeting.run_uid

    def _renew(self) -> None:
        """Build the first requests of a new connection: subscription, address record, report, unanswered requests."""
        self._is_connected = True
        bodies: list[wire.RequestBody] = [wire.SubscribeRequest()] if self._is_following else []
        if self._record is not None:
            bodies.append(wire.AnnounceRequest(self._record))
        if self._report is not None:
            bodies.append(wire.ReportRequest(self._report))
        self._outbox = [self._encode(body) for body in bodies]
        self._subscription = self._next_id - len(bodies) + 1
        self._outbox += [self._pending[number].frame for number in sorted(self._pending)]
        self._wake.set()

    def _encode(self, body: wire.RequestBody) -> bytes:
        self._next_id += 1
        return wire.encode_message(wire.Request(self._next_id, body))

    async def _talk(self, frames: FrameStream) -> None:
        async with open_plain_nursery() as nursery:
            for task in (self._receive_all, self._send_all, self._ping, self._ask_again):
                nursery.start_soon(task, frames)

    async def _send_all(self, frames: FrameStream) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._outbox:
                await frames.send(self._outbox.pop(0), SEND_TIMEOUT_S)

    async def _ping(self, _frames: FrameStream) -> None:
        while True:
            await trio.sleep(PING_S)
            self._send(self._encode(wire.PingRequest()))

    async def _ask_again(self, _frames: FrameStream) -> None:
        """Repeat the subscription while this key is not on the allow list, until the owner adds it."""
        while True:
            await self._refused.wait()
            self._refused = trio.Event()
            await trio.sleep(ALLOWED_AGAIN_S[min(self._refusals, len(ALLOWED_AGAIN_S)) - 1])
            self._subscribe()

    async def _receive_all(self, frames: FrameStream) -> None:
        while True:
            self._take(wire.decode_server_message(await frames.receive(SILENCE_S)))

    def _take(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.Reply():
                self._take_reply(message)
            case wire.FullState():
                self._take_state(message.nonce, read_full(message))
            case wire.StateDelta():
                self._take_delta(message)
            case wire.BookChange():
                self._take_book(message)
            case wire.Goodbye():
                raise _as_backend_error(wire.error_from_code(message.code, message.message))

    def _take_reply(self, reply: wire.Reply) -> None:
        if reply.id == self._subscription:
            self._note_permission(reply)
        pending = self._pending.get(reply.id)
        if pending is not None:
            pending.reply = reply
            pending.answered.set()

    def _note_permission(self, reply: wire.Reply) -> None:
        """Show a named wait: for the owner to allow this key (M12). What to do about it is said once."""
        if reply.code == wire.NotAllowed.__name__:
            self._refusals += 1
            self._refused.set()
            self._waits.start(types.Wait.PERMISSION, "the owner to allow this client's key", "join")
            if reply.message != self._refusal:
                self._refusal = reply.message
                self._sink.emit(types.NotAllowedYet(message=f"{reply.message}. This client then joins by itself"))
        elif not reply.code:
            self._refusals, self._refusal = 0, ""
            self._waits.end(types.Wait.PERMISSION, types.WaitOutcome.ALLOWED)

    def _note_lost(self, error: PsycheError, tries: int) -> None:
        """Show a named wait: for the server, and why it cannot be reached."""
        reason = str(error)
        hint = self._describe_checks() if tries >= HINT_TRIES and not self.connects else ""
        self._sink.emit(types.BackendLost(reason=f"{reason}{hint}", tries=tries))
        if isinstance(error, wire.NotAllowed):
            return  # the server is there: the next answer to the subscription says what is waited for
        server = f"server {self.address.host}:{self.address.port}"
        what = reason if reason.startswith(server) else f"{server}: {reason}"
        self._waits.start(types.Wait.BACKEND, what, "connect again" if self.connects else "connect")

    def _describe_checks(self) -> str:
        host, port = self.address.host, self.address.port
        return (
            f": check that {host} and {port} are host and port of the run's server, that no firewall keeps you from "
            f"it, and that it runs there: psyche server run --state FOLDER --server-port {port}"
        )

    def _take_state(self, nonce: int, raw: bytes) -> None:
        if nonce < self._nonce or (nonce == self._nonce and raw != self._raw):
            raise wire.WrongRun(
                f"the server's state went back from nonce {self._nonce} to {nonce}: it was restored from an older "
                "copy; start this client again"
            )
        if nonce > self._nonce:
            self._raw, self._nonce = raw, nonce
            self._progress.note_change()

    def _take_delta(self, push: wire.StateDelta) -> None:
        try:
            raw = apply_delta(self._raw, self._nonce, push)
        except WireError as error:  # K5: ask for the full state
            self._sink.emit(types.StateMismatch(reason=str(error)))
            self._send(self._encode(wire.SubscribeRequest()))
            return
        self._take_state(push.to_nonce, raw)

    def _take_book(self, change: wire.BookChange) -> None:
        if change.whole:
            self._book.clear()
        for key in change.removed:
            self._book.pop(key, None)
        for record in change.records:
            check_address_record(record)
            self._book[record.p2p] = record
        self._listed = tuple(self._book.values())
        self._progress.note_change()


def _as_backend_error(error: PsycheError) -> BackendError:
    return error if isinstance(error, BackendError) else BackendError(str(error))


open_backend: Final = opens(TcpBackend)
