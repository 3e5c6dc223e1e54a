"""Which source fetches which range of which blob: pure bookkeeping without streams or clocks.

Ranges are assigned to free sources. A range that a source drops goes back to the front of the queue,
minus the chunks it delivered. When the queue is empty, a free source may also be assigned a range that
another has held for too long, one range at a time; the first to deliver a chunk wins.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """`count` chunks of blob number `target`, starting at chunk `first`; `count` 0 means its chunk list."""

    target: int
    first: int
    count: int


class RangeScheduler:
    """Assigns ranges to sources and tracks which source holds which; no range of a blob is assigned before `want`."""

    def __init__(self, chunk_counts: Sequence[int]) -> None:
        self._done = [bytearray(count) for count in chunk_counts]
        self._left = list(chunk_counts)
        self._queue: deque[Range] = deque()
        self._held: dict[Range, tuple[bytes, float]] = {}
        self._wanted_lists: set[int] = set()

    def want_chunk_list(self, target: int) -> None:
        self._wanted_lists.add(target)
        self._queue.append(Range(target, 0, 0))

    def want(self, target: int) -> None:
        """Queue all missing chunks of a blob; its chunk list is no longer needed."""
        self._wanted_lists.discard(target)
        done = self._done[target]
        for first, count in _find_runs(done, 0, len(done)):
            self._queue.append(Range(target, first, count))

    def take(self, source: bytes, now: float, max_chunks: int, is_usable: Callable[[int], bool]) -> Range | None:
        """Assign `source` the next range of at most `max_chunks` of a blob that is usable for it."""
        index = 0
        while index < len(self._queue):
            queued = self._queue[index]
            if not is_usable(queued.target):
                index += 1
                continue
            del self._queue[index]
            runs = self._get_missing_runs(queued)
            if not runs:
                continue  # another source delivered it meanwhile
            first, count = runs[0]
            end = queued.first + queued.count
            taken = Range(queued.target, first, min(count, max_chunks))
            if taken.first + taken.count < end:
                rest = taken.first + taken.count
                self._queue.insert(index, Range(queued.target, rest, end - rest))
            self._held[taken] = (source, now)
            return taken
        return None

    def take_over(self, source: bytes, now: float, held_since: float, is_usable: Callable[[int], bool]) -> Range | None:
        """Assign a copy of the range that others have held longest, if all of them took it before `held_since`."""
        recent = [r for r, (holder, since) in self._held.items() if holder == source or since > held_since]
        late = [
            (since, r)
            for r, (_, since) in self._held.items()
            if since <= held_since and is_usable(r.target) and not any(_overlap(r, one) for one in recent)
        ]
        if not late:
            return None
        oldest = min(late, key=lambda item: item[0])[1]
        runs = self._get_missing_runs(oldest)
        if not runs:
            return None
        copy = Range(oldest.target, *runs[0])
        self._held[copy] = (source, now)
        return copy

    def mark(self, target: int, chunk: int) -> bool:
        """Note that a chunk was checked and stored; return false if it was stored before."""
        if self._done[target][chunk]:
            return False
        self._done[target][chunk] = 1
        self._left[target] -= 1
        return True

    def is_marked(self, target: int, chunk: int) -> bool:
        return bool(self._done[target][chunk])

    def drop(self, held: Range) -> None:
        if self._held.pop(held, None) is None:
            return
        for first, count in reversed(self._get_missing_runs(held)):
            self._queue.appendleft(Range(held.target, first, count))

    def finish(self, held: Range) -> None:
        self._held.pop(held, None)

    def is_done(self, target: int) -> bool:
        return self._left[target] == 0

    def get_missing(self) -> list[int]:
        return [target for target, left in enumerate(self._left) if left]

    def _get_missing_runs(self, item: Range) -> list[tuple[int, int]]:
        """Return the missing parts of a range as (first, count); a missing chunk list is (0, 0)."""
        if item.count:
            return _find_runs(self._done[item.target], item.first, item.first + item.count)
        return [(0, 0)] if item.target in self._wanted_lists else []


def _overlap(one: Range, other: Range) -> bool:
    if one.target != other.target or not one.count or not other.count:
        return one.target == other.target and one.count == other.count
    return one.first < other.first + other.count and other.first < one.first + one.count


def _find_runs(done: bytearray, start: int, end: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    first = done.find(0, start, end)
    while first >= 0:
        stop = done.find(1, first, end)
        stop = end if stop < 0 else stop
        runs.append((first, stop - first))
        first = done.find(0, stop, end)
    return runs
