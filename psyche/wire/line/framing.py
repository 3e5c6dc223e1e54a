"""Length-prefixed frames over a trio stream: u32 little-endian length, then that many bytes.

A frame's length is checked before anything is allocated for it, and every wait has a deadline, so that a
peer that is slow, silent or sends oversized frames loses its own connection and harms nothing else.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from psyche.errors import BackendError, PsycheError, WireError
from psyche.wire.line.length import LENGTH_BYTES, pack_length, read_length
from psyche.wire.line.tls import describe_problem
from psyche.wire.line.turns import AtOnce

READ_BYTES: Final = 1 << 16  # bytes requested from the stream at once


class ConnectionLost(BackendError):
    """The other side closed the connection, or the network broke it."""


class FrameTimeout(BackendError):
    """The other side did not send or did not read a frame within the deadline."""


class FrameStream:
    """Sends and receives frames over a byte stream; one task may receive while others send.

    `max_frame_bytes` may be raised later (until the handshake is done only small frames are received).

    Args:
        stream: any trio stream; owned from now on.
        max_frame_bytes: the largest frame that is received.
        max_send_bytes: the largest frame that is sent; `max_frame_bytes` if not given.
    """

    def __init__(self, stream: trio.abc.Stream, max_frame_bytes: int, max_send_bytes: int | None = None) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_send_bytes = max_frame_bytes if max_send_bytes is None else max_send_bytes
        self.bytes_sent = 0
        self.bytes_received = 0
        self._stream = stream
        self._buffer = bytearray()
        self._send_lock = trio.Lock()

    async def receive(self, timeout_s: float) -> bytes:
        """Receive the next whole frame, without its length.

        A cancelled or timed-out call loses nothing: bytes received so far are kept for the next call.

        Raises:
            WireError: the frame is longer than `max_frame_bytes`, the stream ended inside it, or TLS found it altered.
            FrameTimeout: the frame was not complete within `timeout_s`.
            ConnectionLost: the stream ended between frames, or broke.
        """
        with trio.move_on_after(timeout_s):
            await self._fill(LENGTH_BYTES)
            length = read_length(self._buffer, self.max_frame_bytes, "frame")
            await self._fill(LENGTH_BYTES + length)
            frame = bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + length])
            del self._buffer[: LENGTH_BYTES + length]
            return frame
        raise FrameTimeout(f"frame: no complete frame arrived within {timeout_s:g} s")

    async def send(self, data: bytes | bytearray | memoryview, timeout_s: float) -> None:
        """Send one frame; after a call that does not finish the stream is unusable and must be closed.

        Raises:
            WireError: `data` is longer than `max_send_bytes`; nothing was sent.
            FrameTimeout: the other side did not take it within `timeout_s`.
            ConnectionLost: the stream is closed or broke.
        """
        self._check_size(len(data))
        with trio.move_on_after(timeout_s):
            async with AtOnce(self._send_lock):
                await self._send_all(pack_length(len(data)) + data)
            return
        raise FrameTimeout(f"frame: {len(data)} bytes were not taken within {timeout_s:g} s")

    async def send_in_parts(
        self, first: bytes, size_bytes: int, read: Callable[[int], Awaitable[bytes]], part_timeout_s: float
    ) -> None:
        """Send one frame part by part while reading it, so that a slow receiver holds no more memory than one part.

        The frame has `size_bytes`, `first` included; `read` returns its next bytes, at least one, from an offset in it.
        The timeout is that of each part; otherwise as `send`, also where `read` raises.
        """
        self._check_size(size_bytes)
        async with AtOnce(self._send_lock):
            part, sent_bytes = pack_length(size_bytes) + first, len(first)
            while True:
                with trio.move_on_after(part_timeout_s) as scope:
                    await self._send_all(part)
                if scope.cancelled_caught:
                    raise FrameTimeout(f"frame: a part of {len(part)} bytes was not taken within {part_timeout_s:g} s")
                if sent_bytes >= size_bytes:
                    return
                part = await read(sent_bytes)
                sent_bytes += len(part)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_send_bytes:
            raise WireError(f"frame: {size_bytes} bytes to send, at most {self.max_send_bytes}")

    async def _fill(self, size_bytes: int) -> None:
        while len(self._buffer) < size_bytes:
            missing = size_bytes - len(self._buffer)
            try:
                part = await self._stream.receive_some(READ_BYTES)  # usually one read brings the whole frame
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise _explain(error, "receiving") from error
            if not part:
                if self._buffer:
                    raise WireError(f"frame: the stream ended {missing} bytes before its end")
                raise ConnectionLost("connection: closed by the other side")
            self.bytes_received += len(part)
            self._buffer += part

    async def _send_all(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise _explain(error, "sending") from error
        self.bytes_sent += len(data)


def _explain(error: Exception, doing: str) -> PsycheError:
    problem = describe_problem(error)
    return WireError(f"connection: {problem}") if problem else ConnectionLost(f"connection: broken while {doing}")
