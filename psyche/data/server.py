"""The TCP data server: it gives each client the samples assigned to it in the running round, and no others.

The coordinator process passes the assignments (`set_assignments`) before it pushes the state of a new round to the
clients. Everything is bounded: connections, frames, concurrent reads, the memory of a reply, every wait. A slow,
malformed or foreign connection is closed and logged; it does not affect others.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np
import structlog
import trio

from psyche.data.provider import SampleSource
from psyche.errors import BackendError, DataError, WireError
from psyche.wire.crypto import Identity
from psyche.wire.data import (
    LEAST_RATE_BYTES_S,
    MAX_REASON_CHARACTERS,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_ROWS_BYTES,
    PURPOSE,
    FetchRequest,
    Refused,
    decode_data_request,
    encode_data_reply,
    encode_rows_head,
)
from psyche.wire.line.framing import ConnectionLost, FrameStream
from psyche.wire.line.handshake import server_handshake
from psyche.wire.line.places import Place, Places, get_peer_host
from psyche.wire.line.tls import TlsListener, make_channel

MAX_NON_MEMBERS: Final = 256  # connections before their handshake, or with keys of non-members
MAX_NON_MEMBERS_PER_HOST: Final = 192
MAX_CONNECTIONS_PER_KEY: Final = 1  # a new connection replaces the old one, which is probably dead
MAX_READS: Final = 32  # concurrent reads from disk; no read is held during a send
HANDSHAKE_TIMEOUT_S: Final = 10.0
NON_MEMBER_TIMEOUT_S: Final = 10.0  # time for a non-member's next request
IDLE_TIMEOUT_S: Final = 3_600.0  # a member may be idle through long rounds; its client reconnects by itself
PART_BYTES: Final = 64 << 10  # of a reply in memory: 512 connections hold at most 32 MiB of rows
SEND_TIMEOUT_S: Final = PART_BYTES / LEAST_RATE_BYTES_S  # per part of a reply
ROUND_WAIT_S: Final = 5.0  # how long a request for a round that has not begun here is held
_log = structlog.get_logger("psyche.data.server")


class RowsReply:
    """The frame that answers a request, read from the source in parts as the connection takes them (K7)."""

    def __init__(self, source: SampleSource, request: FetchRequest) -> None:
        self._source = source
        self._start = request.start
        self._row_bytes = source.sequence_length * source.token_size_bytes
        self._ids_bytes = (request.end - request.start + 1) * self._row_bytes
        self._head = encode_rows_head(
            request.start, request.end, source.sequence_length, source.token_size_bytes, self._ids_bytes
        )
        self.size_bytes = len(self._head) + self._ids_bytes

    def read_first(self) -> bytes:
        """Read the first part of the frame: the head and the first ids."""
        return self._head + self._read_ids(0)

    def read(self, offset_bytes: int) -> bytes:
        return self._read_ids(offset_bytes - len(self._head))

    def _read_ids(self, offset_bytes: int) -> bytes:
        """Read at most `PART_BYTES` of ids; a longer row is read again for each of its parts."""
        size_bytes = min(PART_BYTES, self._ids_bytes - offset_bytes)
        first, skipped_bytes = divmod(offset_bytes, self._row_bytes)
        last = (offset_bytes + size_bytes - 1) // self._row_bytes
        rows = self._source.samples(self._start + first, self._start + last)
        ids = rows.astype(f"<u{min(4, self._source.token_size_bytes)}", copy=False).reshape(-1).view(np.uint8)
        return ids[skipped_bytes : skipped_bytes + size_bytes].tobytes()


@dataclass(slots=True)
class DataServerStatistics:
    connections: int = 0
    bytes_sent: int = 0


@dataclass(frozen=True, slots=True)
class _Assignments:
    """The assignments of one round; `round` is (epoch, height), which sorts in order of time."""

    round: tuple[int, int]
    ranges: Mapping[bytes, tuple[int, int]]
    members: frozenset[bytes]
    replaced: trio.Event
    audited: Mapping[int, "Audited"] = field(default_factory=dict)  # rounds before it, by height


AUDITED_ROUNDS: Final = 4  # rounds in which the samples of one may be asked for again


@dataclass(frozen=True, slots=True)
class Audited:
    """The samples of a round, first and last, and the p2p keys that may have them to check its members."""

    first: int
    last: int
    keys: frozenset[bytes]

    def has(self, key: bytes, request: FetchRequest) -> bool:
        return key in self.keys and self.first <= request.start <= request.end <= self.last


class PortStatus(Protocol):
    def started(self, value: int, /) -> None: ...


class DataServer:
    """Serves the samples of a source to the clients of one run, with the same key as the coordinator server's.

    At most `max_non_members` connections of non-members are open; a further one closes the oldest.
    """

    def __init__(self, source: SampleSource, identity: Identity, *, max_non_members: int = MAX_NON_MEMBERS) -> None:
        self.statistics = DataServerStatistics()
        self._source = source
        self._identity = identity
        self._channel = make_channel(identity)
        self._now = _Assignments((0, -1), {}, frozenset(), trio.Event())
        self._places = Places(
            general=max_non_members,
            per_host=max(1, max_non_members * MAX_NON_MEMBERS_PER_HOST // MAX_NON_MEMBERS),
            per_key=MAX_CONNECTIONS_PER_KEY,
            get_first=lambda: self._now.members,
        )
        self._reads = trio.CapacityLimiter(MAX_READS)

    def limit(self, places: int) -> None:
        self._places.most = places

    def set_assignments(
        self,
        epoch: int,
        height: int,
        assignments: Mapping[bytes, tuple[int, int]],
        members: Collection[bytes] = (),
        audited: Mapping[int, Audited] | None = None,
    ) -> None:
        """Serve this round from now on, rounds before it to who audits them, and refuse all others.

        `assignments` maps a p2p key to its (first, last) sample, both included; it is empty in a drain round.
        `members` are the p2p keys of the epoch's members; their idle connections are kept even if they have no
        samples in this round. `audited` has rounds of the same epoch by height.
        """
        former = self._now
        keys = frozenset(assignments) | frozenset(members)
        self._now = _Assignments((epoch, height), dict(assignments), keys, trio.Event(), dict(audited or {}))
        former.replaced.set()

    async def serve(self, host: str, port: int, *, task_status: PortStatus = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; `task_status.started` receives the bound port (port 0 binds a free one).

        Raises:
            DataError: the address cannot be bound.
        """
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            why = f"{error.strerror}; name another port in data_location of run.toml"
            raise DataError(f"data server: cannot listen on {host}:{port}: {why}") from error
        bound: int = listeners[0].socket.getsockname()[1]
        _log.info("serving data", host=host, port=bound, sequences=self._source.num_sequences)
        task_status.started(bound)
        await trio.serve_listeners(self.handle, [TlsListener(one, self._identity) for one in listeners])

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Handle one connection from its first byte to its end; errors of the peer never raise."""
        frames = FrameStream(stream, MAX_REQUEST_BYTES, max_send_bytes=MAX_REPLY_BYTES)
        with trio.move_on_after(math.inf) as scope:  # all waits inside are bounded; `_places` may cancel the scope
            place = self._places.enter(get_peer_host(stream), lambda _reason: scope.cancel())
            self.statistics.connections += 1
            try:
                await self._talk(frames, place)
            except ConnectionLost:
                pass  # the client reconnects, or the coordinator drops it
            except (WireError, BackendError, DataError) as error:
                _log.warning("connection closed", reason=str(error))
            finally:
                self._places.leave(place)
                self.statistics.bytes_sent += frames.bytes_sent
                await frames.aclose()  # closes at once

    async def _talk(self, frames: FrameStream, place: Place) -> None:
        key = await server_handshake(frames, self._channel, PURPOSE, HANDSHAKE_TIMEOUT_S)
        self._places.identify(place, key)
        while True:
            timeout_s = IDLE_TIMEOUT_S if key in self._now.members else NON_MEMBER_TIMEOUT_S
            request = decode_data_request(await frames.receive(timeout_s))
            if key in self._now.members:
                await self._wait_for_round(request)
            refused = self._refuse(key, request) or await self._send_rows(frames, request)
            if refused:
                await frames.send(encode_data_reply(refused), SEND_TIMEOUT_S)
                if key not in self._now.members:
                    return

    def _refuse(self, key: bytes, request: FetchRequest) -> Refused | None:
        if reason := self._find_refusal(key, request):
            note = _log.info if key in self._now.members else _log.debug  # others must not fill the log
            note("data refused", client=key.hex()[:16], reason=reason)
            is_early = (request.epoch, request.height) > self._now.round
            return Refused(reason, may_retry=is_early)
        return None

    async def _send_rows(self, frames: FrameStream, request: FetchRequest) -> Refused | None:
        """Send the rows part by part (K7); return a refusal if they cannot be read."""
        reply = RowsReply(self._source, request)

        async def read(offset_bytes: int) -> bytes:
            return await self._read(partial(reply.read, offset_bytes))

        try:
            first = await self._read(reply.read_first)
        except DataError as error:
            return Refused(str(error)[:MAX_REASON_CHARACTERS], may_retry=True)
        await frames.send_in_parts(first, reply.size_bytes, read, SEND_TIMEOUT_S)
        return None

    async def _read(self, function: Callable[[], bytes]) -> bytes:
        try:
            return await trio.to_thread.run_sync(function, limiter=self._reads)
        except (DataError, OSError, ValueError, MemoryError) as error:
            _log.error("data cannot be read", reason=str(error))
            raise DataError(f"the server cannot read its data: {error}") from error

    async def _wait_for_round(self, request: FetchRequest) -> None:
        """Wait briefly for the request's round: a client may see a new round before this task does."""
        with trio.move_on_after(ROUND_WAIT_S):
            while (request.epoch, request.height) > self._now.round:
                await self._now.replaced.wait()

    def _find_refusal(self, key: bytes, request: FetchRequest) -> str:
        now = self._now
        audited = now.audited.get(request.height) if request.epoch == now.round[0] else None
        if audited is not None and audited.has(key, request):
            return self._find_excess(request)
        if (request.epoch, request.height) != now.round:
            return f"round {(request.epoch, request.height)} is not the running one, {now.round} (epoch, height)"
        assigned = now.ranges.get(key)
        if assigned is None:
            return "no samples are assigned to this key in this round"
        if not assigned[0] <= request.start <= request.end <= assigned[1]:
            return f"samples {request.start} to {request.end} are not yours, {assigned[0]} to {assigned[1]}"
        return self._find_excess(request)

    def _find_excess(self, request: FetchRequest) -> str:
        row_bytes = self._source.sequence_length * self._source.token_size_bytes
        if (request.end - request.start + 1) * row_bytes > max(MAX_ROWS_BYTES, row_bytes):
            return f"samples {request.start} to {request.end} are more than {MAX_ROWS_BYTES} bytes; ask for fewer"
        return ""
