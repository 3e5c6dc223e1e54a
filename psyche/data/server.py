"""The TCP data server: gives each client the samples that the record assigns to it this round, and no others.

The coordinator process says what is assigned (`set_assignments`), before it pushes the state that
says so to the clients. Everything is bounded: connections, frames, reads in flight, every wait. A
slow, malformed or foreign connection is closed and logged, and nobody else notices.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
import trio

from psyche.data.provider import SampleSource
from psyche.errors import BackendError, DataError, WireError
from psyche.wire.crypto import Identity
from psyche.wire.data import (
    MAX_REASON_CHARACTERS,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_ROWS_BYTES,
    PURPOSE,
    FetchReply,
    FetchRequest,
    Refused,
    Rows,
    decode_request,
    encode_reply,
)
from psyche.wire.framing import ConnectionLost, FrameStream
from psyche.wire.handshake import server_handshake

MAX_CONNECTIONS: Final = 512  # members of an epoch, twice: one that reconnects may stand there two times
MAX_REPLIES: Final = 32  # read and being sent at once: 128 MiB at most
HANDSHAKE_TIMEOUT_S: Final = 10.0
STRANGER_TIMEOUT_S: Final = 10.0  # a key without samples has this long to ask for some
IDLE_TIMEOUT_S: Final = 3_600.0  # a member may wait through long rounds
SEND_TIMEOUT_S: Final = 60.0
ROUND_WAIT_S: Final = 5.0  # how long a request for a round that has not begun here yet is held
_log = structlog.get_logger("psyche.data.server")


@dataclass(slots=True)
class DataServerStatistics:
    """Counters since the start."""

    connections: int = 0
    connections_refused: int = 0
    requests_refused: int = 0
    rows_served: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True, slots=True)
class _Assignments:
    """What is served now; `round` is (epoch, height), ordered as rounds are."""

    round: tuple[int, int]
    ranges: Mapping[bytes, tuple[int, int]]
    members: frozenset[bytes]
    replaced: trio.Event


class PortStatus(Protocol):
    """What `nursery.start` hands over, as far as it is needed here."""

    def started(self, value: int, /) -> None:
        """The listeners are up on port `value`."""
        ...


class DataServer:
    """Serves a source to the clients of one run.

    Args:
        source: the samples; read in threads.
        identity: the server's key, the same as the coordinator server's.
        max_connections: further ones are closed at once.
    """

    def __init__(self, source: SampleSource, identity: Identity, *, max_connections: int = MAX_CONNECTIONS) -> None:
        self.statistics = DataServerStatistics()
        self._source = source
        self._identity = identity
        self._max_connections = max_connections
        self._now = _Assignments((0, -1), {}, frozenset(), trio.Event())
        self._open = 0
        self._scopes: dict[bytes, trio.CancelScope] = {}
        self._replies = trio.CapacityLimiter(MAX_REPLIES)

    def set_assignments(
        self,
        epoch: int,
        height: int,
        assignments: Mapping[bytes, tuple[int, int]],
        members: Collection[bytes] = (),
    ) -> None:
        """From now on serve this round: p2p key -> (first, last) sample, both included.

        Rounds before and after it are refused. `members` are the keys of the epoch, whose idle
        connections are kept although they have no samples this round; empty in a drain round is fine.
        """
        former = self._now
        keys = frozenset(assignments) | frozenset(members)
        self._now = _Assignments((epoch, height), dict(assignments), keys, trio.Event())
        former.replaced.set()

    def get_assignment(self, key: bytes) -> tuple[int, int] | None:
        """The (first, last) sample of a p2p key in the round that is served now."""
        return self._now.ranges.get(key)

    async def serve(self, host: str, port: int, *, task_status: PortStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; `task_status.started` gets the port (0 asks for a free one).

        Raises:
            DataError: the address cannot be bound.
        """
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise DataError(f"data server: cannot listen on {host}:{port}: {error.strerror}") from error
        bound: int = listeners[0].socket.getsockname()[1]
        _log.info("serving data", host=host, port=bound, sequences=self._source.num_sequences)
        task_status.started(bound)
        await trio.serve_listeners(self.handle, listeners)

    async def handle(self, stream: trio.abc.Stream) -> None:
        """One connection from its first byte to its end; never raises for what the other side does."""
        frames = FrameStream(stream, MAX_REQUEST_BYTES, max_send_bytes=MAX_REPLY_BYTES)
        try:
            if self._open >= self._max_connections:
                self.statistics.connections_refused += 1
                _log.warning("connection refused: too many", limit=self._max_connections)
                return
            self._open += 1
            self.statistics.connections += 1
            try:
                await self._talk(frames)
            except ConnectionLost:
                pass  # a client went away: it comes back, or the coordinator notices
            except (WireError, BackendError) as error:
                _log.warning("connection closed", reason=str(error))
            finally:
                self._open -= 1
        finally:
            self.statistics.bytes_sent += frames.bytes_sent
            await frames.aclose()

    async def _talk(self, frames: FrameStream) -> None:
        key = await server_handshake(frames, self._identity, PURPOSE, HANDSHAKE_TIMEOUT_S)
        with trio.move_on_after(math.inf) as scope:  # bounded by what is in it
            former, self._scopes[key] = self._scopes.get(key), scope
            if former is not None:
                former.cancel()  # one connection a key: the newest is the living one
            try:
                await self._answer_all(frames, key)
            finally:
                if self._scopes.get(key) is scope:
                    del self._scopes[key]

    async def _answer_all(self, frames: FrameStream, key: bytes) -> None:
        while True:
            timeout_s = IDLE_TIMEOUT_S if key in self._now.members else STRANGER_TIMEOUT_S
            request = decode_request(await frames.receive(timeout_s))
            async with self._replies:
                reply = await self._answer(key, request)
                await frames.send(encode_reply(reply), SEND_TIMEOUT_S)
            if isinstance(reply, Refused):
                self.statistics.requests_refused += 1
                if key not in self._now.members:
                    return

    async def _answer(self, key: bytes, request: FetchRequest) -> FetchReply:
        await self._wait_for_round(request)
        if reason := self._find_refusal(key, request):
            _log.info("data refused", client=key.hex()[:16], reason=reason)
            is_early = (request.epoch, request.height) > self._now.round
            return Refused(reason, may_retry=is_early)
        try:
            return await trio.to_thread.run_sync(self._read, request)
        except (DataError, OSError, ValueError, MemoryError) as error:
            _log.error("data cannot be read", reason=str(error))
            return Refused(f"the server cannot read its data: {error}"[:MAX_REASON_CHARACTERS], may_retry=True)

    async def _wait_for_round(self, request: FetchRequest) -> None:
        """A client may see the new round a moment before the server's own task does."""
        with trio.move_on_after(ROUND_WAIT_S):
            while (request.epoch, request.height) > self._now.round:
                await self._now.replaced.wait()

    def _find_refusal(self, key: bytes, request: FetchRequest) -> str:
        now = self._now
        if (request.epoch, request.height) != now.round:
            return f"round {(request.epoch, request.height)} is not the running one, {now.round} (epoch, height)"
        assigned = now.ranges.get(key)
        if assigned is None:
            return "no samples are assigned to this key in this round"
        if not assigned[0] <= request.start <= request.end <= assigned[1]:
            return f"samples {request.start} to {request.end} are not those assigned, {assigned[0]} to {assigned[1]}"
        row_bytes = self._source.sequence_length * self._source.token_size_bytes
        if (request.end - request.start + 1) * row_bytes > max(MAX_ROWS_BYTES, row_bytes):
            return f"samples {request.start} to {request.end} are more than {MAX_ROWS_BYTES} bytes; ask for fewer"
        return ""

    def _read(self, request: FetchRequest) -> Rows:
        size_bytes = self._source.token_size_bytes
        rows = self._source.samples(request.start, request.end)
        ids = rows.astype(f"<u{size_bytes}", copy=False).tobytes()
        return Rows(request.start, request.end, self._source.sequence_length, size_bytes, ids)
