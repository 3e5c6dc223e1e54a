"""What a node's connections hold that came and was not read: one budget for all of them.

Bytes are counted where they are taken in. When the budget is full, somebody is cut: of the connections that hold at
least the average, one whose peer stands lower goes first, and of these the one that holds most. Who reads what it
was sent holds little, so that an honest peer's transfer goes on beside strangers that fill all the rest.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

import trio

PART_BYTES: Final = 64 << 10
MAX_RESTING: Final = 1_024


class Overflow(trio.TooSlowError):
    """A peer sends more than it may; yamux closes the connection on this class."""


class Standing(IntEnum):
    """What a peer is to this node; who stands lower is cut first."""

    UNKNOWN = 0  # not past hello
    ALLOWED = 1
    MEMBER = 2  # of the epoch


class UnreadBudget:
    """The unread bytes of all connections of a node.

    Args:
        max_bytes: of all connections together.
        connection_bytes: of one.
        rest_s: for so long a peer that was cut, and is no member, is not let in again.
    """

    def __init__(self, max_bytes: int, connection_bytes: int, rest_s: float) -> None:
        self.max_bytes = max_bytes
        self.connection_bytes = connection_bytes
        self.held_bytes = 0
        self.most_bytes = 0  # ever held
        self.cuts = 0
        self._most_lately = 0  # since the allocator was trimmed
        self.get_standing: Callable[[Any], Standing] = lambda _owner: Standing.UNKNOWN
        self.on_cut: Callable[[Any, str], None] = lambda _owner, _reason: None
        self._rest_s = rest_s
        self._holders: set[Account] = set()  # who holds anything
        self._resting: dict[object, float] = {}  # until when

    def count(self, account: "Account", more_bytes: int) -> None:
        """Note that a connection holds so many bytes more, or less."""
        self.held_bytes += more_bytes
        self.most_bytes = max(self.most_bytes, self.held_bytes)
        self._most_lately = max(self._most_lately, self.held_bytes)
        if account.held_bytes:
            self._holders.add(account)
        else:
            self._holders.discard(account)

    def is_worth_trimming(self, size_bytes: int) -> bool:
        """Whether so many bytes were held, and given back, since this was last true."""
        if self._most_lately - self.held_bytes < size_bytes:
            return False
        self._most_lately = self.held_bytes
        return True

    def make_room(self, account: "Account", size_bytes: int) -> None:
        """Cut whoever is greediest until `size_bytes` fit.

        Raises:
            Overflow: that was `account` itself.
        """
        if account.held_bytes + size_bytes > self.connection_bytes:
            self.cut(account, f"more than {self.connection_bytes} bytes unread")
        while not account.is_cut and self.held_bytes + size_bytes > self.max_bytes:
            greediest = self._find_greediest(account, size_bytes)
            held = greediest.held_bytes
            self.cut(greediest, f"{held} bytes unread, the most of {self.held_bytes} that all connections hold")
        if account.is_cut:
            raise Overflow("cut: too much unread")

    def _find_greediest(self, account: "Account", size_bytes: int) -> "Account":
        held = {one: one.held_bytes for one in self._holders}
        held[account] = account.held_bytes + size_bytes
        average = sum(held.values()) / len(held)
        # what an honest peer holds for a moment is below the average while somebody fills the budget
        greedy = [one for one, size in held.items() if size >= average]
        return min(greedy, key=lambda one: (self.get_standing(one.owner), -held[one]))

    def cut(self, account: "Account", reason: str) -> None:
        """Let a connection hold nothing any more, and have it closed."""
        if account.is_cut:
            return
        account.is_cut = True
        self.cuts += 1
        account.release()
        if self.get_standing(account.owner) < Standing.MEMBER:
            self._rest(account.owner)
        self.on_cut(account.owner, reason)

    def _rest(self, owner: object) -> None:
        now = trio.current_time()
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        if len(self._resting) < MAX_RESTING:
            self._resting[owner] = now + self._rest_s

    def is_resting(self, owner: object) -> bool:
        """Whether a peer was cut a moment ago: it would fill the budget again."""
        return self._resting.get(owner, 0.0) > trio.current_time()


def give_memory_back() -> None:
    """Have the C library give what it keeps of freed memory back to the system, where it can (glibc).

    What connections held lies between what others hold: after a wave over 300 MiB stayed, all of it free.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Account:
    """What one connection holds.

    Args:
        budget: of the node.
        owner: the peer, as the budget's `get_standing` and `on_cut` know it.
        release: drops all that the connection holds, and gives it back.
    """

    def __init__(self, budget: UnreadBudget, owner: object, release: Callable[[], None]) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.is_cut = False
        self.release = release
        self._budget = budget

    def take(self, size_bytes: int) -> None:
        """Count bytes before they are kept.

        Raises:
            Overflow: the connection is cut, now or before.
        """
        if not size_bytes:
            return
        self._budget.make_room(self, size_bytes)
        self.held_bytes += size_bytes
        self._budget.count(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """The bytes were read or dropped."""
        if size_bytes:
            self.held_bytes -= size_bytes
            self._budget.count(self, -size_bytes)

    @contextmanager
    def expecting(self, size_bytes: int) -> Iterator[None]:
        """Count bytes for as long as they are on their way in.

        Raises:
            Overflow: as `take`.
        """
        self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(size_bytes)

    def close(self) -> None:
        """The connection is over: it holds nothing, and takes nothing any more."""
        self.is_cut = True
        self.release()


class StreamBuffers(dict[int, Any]):
    """The receive buffers of a yamux connection, bounded in number, their bytes counted.

    yamux announces windows and does not enforce them: without this, a peer fills the memory through
    a stream that nobody reads.
    """

    def __init__(self, budget: UnreadBudget, owner: object, max_streams: int) -> None:
        super().__init__()
        self.account = Account(budget, owner, self.clear)
        self._max_streams = max_streams

    def __setitem__(self, stream_id: int, _buffer: object) -> None:
        if len(self) >= self._max_streams and stream_id not in self:
            raise Overflow(f"more than {self._max_streams} streams")
        self.pop(stream_id, None)
        super().__setitem__(stream_id, StreamBuffer(self.account))

    def __delitem__(self, stream_id: int) -> None:
        self.pop(stream_id)

    def pop(self, stream_id: int, *default: Any) -> Any:
        """Take a buffer out; nothing is in it any more."""
        found = super().pop(stream_id, *default)
        if isinstance(found, StreamBuffer):
            found.clear()
        return found

    def clear(self) -> None:
        """Drop all buffers, and at once the bytes in them, whoever else still knows them."""
        for buffer in list(self.values()):
            buffer.clear()
        super().clear()


class StreamBuffer:
    """Bytes in their order, as much of a bytearray as yamux uses: it adds at the end and takes from the front.

    In parts, for one long bytearray is moved as it grows: that left three times its bytes in the allocator.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._parts: deque[bytearray] = deque()
        self._size = 0
        self._is_over = False

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def __getitem__(self, front: slice) -> bytes:
        missing = min(front.stop, self._size)
        found: list[memoryview] = []
        for part in self._parts:
            if not missing:
                break
            found.append(memoryview(part)[:missing])
            missing -= len(found[-1])
        return b"".join(found)

    def __delitem__(self, front: slice) -> None:
        missing = size = min(front.stop, self._size)
        while missing:
            part = self._parts[0]
            if len(part) > missing:
                del part[:missing]
                break
            missing -= len(self._parts.popleft())
        self._size -= size
        self._account.give_back(size)

    def extend(self, data: bytes) -> None:
        """Add at the end.

        Raises:
            Overflow: the connection holds too much.
        """
        if self._is_over:
            return
        self._account.take(len(data))
        self._size += len(data)
        if self._parts and len(self._parts[-1]) + len(data) <= PART_BYTES:
            self._parts[-1].extend(data)  # else one byte a frame would cost sixty
        elif data:
            self._parts.append(bytearray(data))

    def end(self) -> None:
        """Nobody will read any more: drop everything, and whatever still comes."""
        self._is_over = True
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        size, self._size = self._size, 0
        self._parts.clear()
        self._account.give_back(size)
