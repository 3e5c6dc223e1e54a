"""A stream that is read with patience, and not for ever: a source may neither stop sending nor trickle."""

from collections.abc import Awaitable, Callable

import trio

from psyche.errors import NetworkError
from psyche.network.streams import ByteStream


class SourceStalled(NetworkError):
    """The source did not deliver in time."""

    def __init__(self, message: str, waited_s: float) -> None:
        super().__init__(message)
        self.waited_s = waited_s


class PatientStream:
    """A stream whose reads have two timeouts: one for the next bytes and one for the whole reply."""

    def __init__(self, stream: ByteStream, idle_s: float, limit_s: float) -> None:
        self._stream = stream
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._until = trio.current_time() + limit_s
        self._scope = trio.CancelScope(deadline=self._until)  # pyright: ignore[reportCallIssue]

    async def run(self, function: Callable[["PatientStream"], Awaitable[None]]) -> None:
        """Call `function`, which reads from this stream, under both timeouts."""
        with self._scope:
            await function(self)
        if self._scope.cancelled_caught:
            if trio.current_time() >= self._until:
                raise SourceStalled(f"nothing complete within {self._limit_s:.1f} s", self._limit_s)
            raise SourceStalled(f"sends nothing for {self._idle_s:.1f} s", self._idle_s)

    async def read_some(self, max_bytes: int) -> bytes:
        idle_until = trio.current_time() + self._idle_s
        if idle_until >= self._until:
            return await self._stream.read_some(max_bytes)
        self._scope.deadline = idle_until
        data = await self._stream.read_some(max_bytes)
        self._scope.deadline = self._until
        return data
