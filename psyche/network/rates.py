"""Bounded bookkeeping: token buckets per key, and sets of seen items."""

from collections import OrderedDict, deque
from typing import Final

from psyche.wire.line.pace import TokenBucket

MAX_BUCKETS: Final = 1_024


class Buckets:
    """One token bucket per key; the least recently used key is evicted."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._buckets: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def take(self, key: bytes, now: float) -> bool:
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._rate, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket.take(now)


class SeenSet:
    """The last `max_items` hashes; adding another evicts the oldest."""

    def __init__(self, max_items: int) -> None:
        self._max = max_items
        self._seen: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def __contains__(self, item: bytes) -> bool:
        return item in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, item: bytes) -> bool:
        if item in self._seen:
            return False
        if len(self._seen) >= self._max:
            self._seen.discard(self._order.popleft())
        self._seen.add(item)
        self._order.append(item)
        return True
