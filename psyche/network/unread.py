"""One budget for the unread bytes of all connections of a node.

Bytes are counted when they arrive. When the budget is full, a connection is cut: among those that hold at least
the average, the one whose peer has the lowest standing, and among equals the one that holds most. Connections whose
data is read hold little, so an honest peer's transfer goes on while unauthenticated peers fill the rest of the budget.
"""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final, NoReturn

import trio

PART_BYTES: Final = 64 << 10
MAX_RESTING: Final = 1_024


class Overflow(trio.TooSlowError):
    """A peer sent more than it may; yamux closes the connection on this error."""


class Standing(IntEnum):
    """A peer's standing with this node; the lowest is cut first."""

    UNKNOWN = 0  # has not completed hello
    ALLOWED = 1
    MEMBER = 2  # a member of the epoch


class UnreadBudget:
    """The unread bytes of all connections; a non-member that was cut is not let in again for `rest_s` seconds."""

    def __init__(self, max_bytes: int, connection_bytes: int, rest_s: float) -> None:
        self.max_bytes = max_bytes
        self.connection_bytes = connection_bytes
        self.held_bytes = 0
        self.cuts = 0
        self._most_lately = 0  # the most held since the allocator was trimmed
        self.get_standing: Callable[[Any], Standing] = lambda _owner: Standing.UNKNOWN
        self.on_cut: Callable[[Any, str], None] = lambda _owner, _reason: None
        self._rest_s = rest_s
        self._holders: set[Account] = set()  # accounts that hold bytes
        self._resting: dict[object, float] = {}  # until when

    def count(self, account: "Account", more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self._most_lately = max(self._most_lately, self.held_bytes)
        if account.held_bytes:
            self._holders.add(account)
        else:
            self._holders.discard(account)

    def is_worth_trimming(self, size_bytes: int) -> bool:
        """Whether `size_bytes` were held and given back since this last returned true."""
        if self._most_lately - self.held_bytes < size_bytes:
            return False
        self._most_lately = self.held_bytes
        return True

    def make_room(self, account: "Account", size_bytes: int) -> None:
        """Cut the greediest connections until `size_bytes` fit; raises Overflow if `account` itself was cut."""
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
        # while somebody fills the budget, what an honest peer briefly holds is below the average
        greedy = [one for one, size in held.items() if size >= average]
        return min(greedy, key=lambda one: (self.get_standing(one.owner), -held[one]))

    def cut(self, account: "Account", reason: str, *, rests: bool = False) -> None:
        """Release all that a connection holds, and have it closed; unless `rests`, a member may come back at once."""
        if account.is_cut:
            return
        account.is_cut = True
        self.cuts += 1
        account.release()
        if rests or self.get_standing(account.owner) < Standing.MEMBER:
            self._rest(account.owner)
        self.on_cut(account.owner, reason)

    def _rest(self, owner: object) -> None:
        now = trio.current_time()
        self._resting = {one: until for one, until in self._resting.items() if until > now}
        if len(self._resting) < MAX_RESTING:
            self._resting[owner] = now + self._rest_s

    def is_resting(self, owner: object) -> bool:
        return self._resting.get(owner, 0.0) > trio.current_time()


def give_memory_back() -> None:
    """Have the C library return freed memory to the system, if it can (glibc).

    Freed buffers lie between live ones: after a flood more than 300 MiB stayed allocated, all of it free.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Account:
    """The unread bytes of one connection; `release` drops all bytes that it holds and gives them back."""

    def __init__(self, budget: UnreadBudget, owner: object, release: Callable[[], None]) -> None:
        self.owner = owner
        self.held_bytes = 0
        self.is_cut = False
        self.release = release
        self._budget = budget

    def take(self, size_bytes: int) -> None:
        """Count bytes before they are stored; raises Overflow if the connection is cut now or was cut before."""
        if not size_bytes:
            return
        self._budget.make_room(self, size_bytes)
        self.held_bytes += size_bytes
        self._budget.count(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        if size_bytes:
            self.held_bytes -= size_bytes
            self._budget.count(self, -size_bytes)

    @contextmanager
    def expecting(self, size_bytes: int) -> Iterator[None]:
        self.take(size_bytes)
        try:
            yield
        finally:
            self.give_back(size_bytes)

    def break_off(self, reason: str) -> NoReturn:
        """Cut a connection whose peer breaks the rules of yamux, and let the peer rest, also a member."""
        self._budget.cut(self, reason, rests=True)
        raise Overflow(reason)

    def close(self) -> None:
        self.is_cut = True
        self.release()


class StreamBuffers(dict[int, Any]):
    """The receive buffers of a yamux connection, limited in number and counted in bytes.

    yamux announces windows but does not enforce them: without this class, a peer could fill the memory through
    a stream that nobody reads.
    """

    def __init__(self, budget: UnreadBudget, owner: object, max_streams: int) -> None:
        super().__init__()
        self.account = Account(budget, owner, self.clear)
        self._max_streams = max_streams

    def __setitem__(self, stream_id: int, _buffer: object) -> None:
        if len(self) >= self._max_streams and stream_id not in self:
            self.account.break_off(f"more than {self._max_streams} streams")
        self.pop(stream_id, None)
        super().__setitem__(stream_id, StreamBuffer(self.account))

    def __delitem__(self, stream_id: int) -> None:
        self.pop(stream_id)

    def pop(self, stream_id: int, *default: Any) -> Any:
        found = super().pop(stream_id, *default)
        if isinstance(found, StreamBuffer):
            found.clear()
        return found

    def clear(self) -> None:
        for buffer in list(self.values()):
            buffer.clear()
        super().clear()


class StreamBuffer:
    """A queue of bytes with the part of bytearray's interface that yamux uses: append at the end, delete at the front.

    Stored in parts, because a long bytearray is moved as it grows, which left three times its size in the allocator.
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
        if self._is_over:
            return
        self._account.take(len(data))
        self._size += len(data)
        if self._parts and len(self._parts[-1]) + len(data) <= PART_BYTES:
            self._parts[-1].extend(data)  # otherwise a frame of one byte would cost sixty
        elif data:
            self._parts.append(bytearray(data))

    def end(self) -> None:
        """Drop everything, and all that still arrives: nobody will read it."""
        self._is_over = True
        self.clear()

    def clear(self) -> None:
        size, self._size = self._size, 0
        self._parts.clear()
        self._account.give_back(size)
