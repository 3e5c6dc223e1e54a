"""The server's side of one client connection: what waits to be sent, and its rate limit."""

from collections import deque
from dataclasses import dataclass, field

import trio

from psyche.errors import BackendError
from psyche.server.connections.limits import MAX_REPLIES, REQUEST_BURST, REQUESTS_PER_S
from psyche.server.connections.push import StateVersion
from psyche.server.handler import Answer
from psyche.wire.backend import Goodbye, Overloaded, shorten
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.pace import TokenBucket
from psyche.wire.line.places import Place


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
    goodbye: Goodbye | None = None
    _answers: deque[Answer] = field(default_factory=deque)
    _wake: trio.Event = field(default_factory=trio.Event)
    _bucket: TokenBucket = field(
        default_factory=lambda: TokenBucket(REQUESTS_PER_S, REQUEST_BURST, trio.current_time())
    )

    @property
    def name(self) -> str:
        return f"#{self.number}" if self.key is None else f"#{self.number} {self.key.hex()[:16]}"

    def admit(self) -> None:
        """Count one request; refuse it if requests come too fast."""
        if not self._bucket.take(trio.current_time()):
            raise Overloaded(f"more than {REQUESTS_PER_S:g} requests a second")

    def add_answer(self, answer: Answer) -> None:
        """Queue an answer; it is sent once its journal record is on disk."""
        if len(self._answers) >= MAX_REPLIES:
            raise Overloaded(f"{MAX_REPLIES} replies are unread")
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
            self.goodbye = Goodbye(type(error).__name__, shorten(str(error)))
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
