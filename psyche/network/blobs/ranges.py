"""Who fetches which range of which blob: pure book-keeping, without streams or clocks of its own.

Ranges go to whichever source is free. What a source drops goes back to the front of the queue,
less the chunks it delivered. When nothing is left to hand out, a free source may take over what
another has held for too long, one at a time; the first to deliver a chunk wins.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """`count` chunks from chunk `first` on of blob number `target`; `count` 0 stands for its manifest."""

    target: int
    first: int
    count: int


class RangeScheduler:
    """Hands out ranges and remembers who holds them.

    Args:
        chunk_counts: chunks of each blob. Nothing is handed out of a blob before `want`.
    """

    def __init__(self, chunk_counts: Sequence[int]) -> None:
        self._done = [bytearray(count) for count in chunk_counts]
        self._left = list(chunk_counts)
        self._queue: deque[Range] = deque()
        self._held: dict[Range, tuple[bytes, float]] = {}
        self._wanted_manifests: set[int] = set()

    def want_manifest(self, target: int) -> None:
        """Queue the manifest of a blob."""
        self._wanted_manifests.add(target)
        self._queue.append(Range(target, 0, 0))

    def want(self, target: int) -> None:
        """Queue all chunks of a blob that are not done; its manifest is not wanted any more."""
        self._wanted_manifests.discard(target)
        done = self._done[target]
        for first, count in _find_runs(done, 0, len(done)):
            self._queue.append(Range(target, first, count))

    def take(self, source: bytes, now: float, max_chunks: int, is_usable: Callable[[int], bool]) -> Range | None:
        """The next range of at most `max_chunks` of a blob that is usable for `source`, now held by it."""
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
        """A copy of the range that others have held longest, if all of them since before `held_since`."""
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
        """A chunk is here, checked and stored; false if it was already."""
        if self._done[target][chunk]:
            return False
        self._done[target][chunk] = 1
        self._left[target] -= 1
        return True

    def is_marked(self, target: int, chunk: int) -> bool:
        """Whether a chunk is here."""
        return bool(self._done[target][chunk])

    def drop(self, held: Range) -> None:
        """A range is not held any more: what is missing of it goes back to the front of the queue."""
        if self._held.pop(held, None) is None:
            return
        for first, count in reversed(self._get_missing_runs(held)):
            self._queue.appendleft(Range(held.target, first, count))

    def finish(self, held: Range) -> None:
        """A range was delivered in full."""
        self._held.pop(held, None)

    def is_done(self, target: int) -> bool:
        """Whether all chunks of a blob are here."""
        return self._left[target] == 0

    @property
    def is_complete(self) -> bool:
        """Whether everything is here."""
        return not any(self._left)

    def get_missing(self) -> list[int]:
        """The blobs that are not here yet."""
        return [target for target, left in enumerate(self._left) if left]

    def _get_missing_runs(self, item: Range) -> list[tuple[int, int]]:
        """What of a range is not here, as (first, count); a wanted manifest is the run (0, 0)."""
        if item.count:
            return _find_runs(self._done[item.target], item.first, item.first + item.count)
        return [(0, 0)] if item.target in self._wanted_manifests else []


def _overlap(one: Range, other: Range) -> bool:
    """Whether two ranges have a chunk, or the manifest, in common."""
    if one.target != other.target or not one.count or not other.count:
        return one.target == other.target and one.count == other.count
    return one.first < other.first + other.count and other.first < one.first + one.count


def _find_runs(done: bytearray, start: int, end: int) -> list[tuple[int, int]]:
    """Runs of chunks that are not done, as (first, count)."""
    runs: list[tuple[int, int]] = []
    first = done.find(0, start, end)
    while first >= 0:
        stop = done.find(1, first, end)
        stop = end if stop < 0 else stop
        runs.append((first, stop - first))
        first = done.find(0, stop, end)
    return runs
