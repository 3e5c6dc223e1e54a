"""The client's side of the data server: fetches and checks the rows of the client's own batch."""

from typing import Final

import structlog
import trio

from psyche.errors import BackendError, DataError, HandshakeError, UnusableDataError, WireError
from psyche.wire.crypto import Identity
from psyche.wire.data import (
    LABELLED_BYTES,
    LEAST_RATE_BYTES_S,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_ROWS_BYTES,
    PURPOSE,
    FetchRequest,
    Refused,
    Rows,
    decode_data_reply,
    encode_data_request,
)
from psyche.wire.line.framing import FrameStream, FrameTimeout
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import open_tls

TRIES: Final = 7
BACK_OFF_S: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # before each try
CONNECT_TIMEOUT_S: Final = 10.0
REPLY_TIMEOUT_S: Final = 30.0
MAX_ROWS: Final = 65_535
_log = structlog.get_logger("psyche.data.client")


class RemoteData:
    """A `DataProvider` that fetches rows from a data server and reconnects by itself.

    It makes one fetch at a time. Each piece of a batch is tried 7 times with pauses of 0.25 to 8 s, so `get` gives up
    on an absent server after pauses of 16 s in total, plus the time-outs of the tries: 10 s to connect, 30 s for a
    reply (longer while it arrives at the least rate, K7). The caller's cancel scope may end it earlier.
    `expected_server` is the server's public key; None: the key of the first server that answers.
    """

    def __init__(
        self,
        address: str,
        identity: Identity,
        *,
        sequence_length: int,
        vocab_size: int | None = None,
        expected_server: bytes | None = None,
        has_labels: bool = False,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise DataError(f'data server address {address!r}: must be "host:port"')
        self.sequence_length = sequence_length
        self._address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._identity = identity
        self._vocab_size = vocab_size
        self._expected_server = expected_server
        self._has_labels = has_labels
        self._frames: FrameStream | None = None
        self._lock = trio.Lock()

    async def get(self, start: int, end: int, *, epoch: int = 0, height: int = 0) -> bytes:
        if not 0 <= start <= end or end - start >= MAX_ROWS:
            raise DataError(f"samples {start} to {end}: the range must ascend from 0 or above, {MAX_ROWS} at most")
        token_bytes = LABELLED_BYTES if self._has_labels else 4
        piece = max(1, MAX_ROWS_BYTES // (token_bytes * self.sequence_length))
        pieces: list[bytes] = []
        async with self._lock:
            for first in range(start, end + 1, piece):
                request = FetchRequest(epoch, height, first, min(first + piece - 1, end))
                pieces.append(await self._fetch(request))
        return b"".join(pieces)

    async def aclose(self) -> None:
        frames, self._frames = self._frames, None
        if frames is not None:
            await frames.aclose()

    async def _fetch(self, request: FetchRequest) -> bytes:
        problem = ""
        for delay_s in BACK_OFF_S:
            await trio.sleep(delay_s)
            try:
                reply = await self._ask(request)
            except HandshakeError as error:
                raise DataError(f"data server {self._address}: {error}") from error
            except (OSError, BackendError, WireError) as error:
                problem = str(error) or type(error).__name__
            else:
                if isinstance(reply, Rows):
                    return await trio.to_thread.run_sync(self._check_rows, reply)
                if not reply.may_retry:
                    raise DataError(f"data server {self._address} refuses: {reply.reason}")
                problem = reply.reason
            _log.info("no data yet, the client asks again", server=self._address, problem=problem)
        raise DataError(
            f"data server {self._address}: samples {request.start} to {request.end} of round {request.height} did not "
            f"arrive in {TRIES} tries; the last problem: {problem}"
        )

    async def _ask(self, request: FetchRequest) -> Rows | Refused:
        """Make one try; close the connection unless it gave a valid answer."""
        is_clean = False
        try:
            frames = await self._get_connection()
            await frames.send(encode_data_request(request), REPLY_TIMEOUT_S)
            reply = decode_data_reply(await _receive(frames))
            self._check_reply(request, reply)
            is_clean = True
        finally:
            if not is_clean:
                await self.aclose()  # closes at once, even when cancelled
        return reply

    async def _get_connection(self) -> FrameStream:
        if self._frames is None:
            with trio.move_on_after(CONNECT_TIMEOUT_S) as scope:
                stream, channel = await open_tls(self._host, self._port)
                self._frames = FrameStream(stream, MAX_REPLY_BYTES, max_send_bytes=MAX_REQUEST_BYTES)
                await client_handshake(
                    self._frames, self._identity, PURPOSE, channel, self._expected_server, CONNECT_TIMEOUT_S
                )
                self._expected_server = channel.server  # without an expected key, pin that of the first server (K6)
            if scope.cancelled_caught or self._frames is None:
                raise BackendError(f"no connection within {CONNECT_TIMEOUT_S:g} s")
        return self._frames

    def _check_reply(self, request: FetchRequest, reply: Rows | Refused) -> None:
        if isinstance(reply, Refused):
            return
        if (reply.start, reply.end) != (request.start, request.end):
            raise WireError(f"data reply: samples {reply.start} to {reply.end} were not requested")
        if reply.sequence_length != self.sequence_length:
            raise WireError(
                f"data reply: rows have {reply.sequence_length} ids, but the model needs {self.sequence_length}; "
                "set seq_len in the server's data.toml to the model's max_seq_len"
            )
        if (reply.token_size_bytes == LABELLED_BYTES) != self._has_labels:
            raise DataError(
                f"data server {self._address}: its rows have {'no ' if self._has_labels else ''}labels, the run's "
                f"data_type is {'Finetuning' if self._has_labels else 'Pretraining'}"
            )

    def _check_rows(self, reply: Rows) -> bytes:
        import numpy as np

        if self._has_labels:
            from psyche.data.prepared.rows import check_tokens

            rows = np.frombuffer(reply.ids, dtype="<i4").reshape(-1, self.sequence_length, 3).astype(np.int64)
            rows[..., 2] &= 0xFFFF_FFFF
            check_tokens(rows, self._vocab_size, lambda row: f"data server {self._address}: sample {reply.start + row}")
            return reply.ids
        ids = np.frombuffer(reply.ids, dtype=f"<u{reply.token_size_bytes}").astype("<u4")
        if self._vocab_size is not None and int(ids.max()) >= self._vocab_size:
            place = int(np.argmax(ids >= self._vocab_size))
            raise UnusableDataError(
                f"data server {self._address}: token {int(ids[place])} at position {place % self.sequence_length} of "
                f"sample {reply.start + place // self.sequence_length} is not below the vocabulary's size "
                f"{self._vocab_size}; its owner tokenizes with the model's tokenizer"
            )
        return ids.tobytes()


async def _receive(frames: FrameStream) -> bytes:
    """Receive a reply; a slow one may take longer than the time-out while it arrives at the least rate (K7)."""
    while True:
        before_bytes = frames.bytes_received
        try:
            return await frames.receive(REPLY_TIMEOUT_S)
        except FrameTimeout:
            if frames.bytes_received - before_bytes < REPLY_TIMEOUT_S * LEAST_RATE_BYTES_S:
                raise
