"""Bounded bookkeeping: token buckets per key, sets of seen items, and source statistics."""

from collections import OrderedDict, deque
from statistics import median
from typing import Final

from psyche.wire.line.pace import TokenBucket

MAX_BUCKETS: Final = 1_024
MIN_SAMPLE_BYTES: Final = 256 << 10
_SAMPLES: Final = 16
_NEW_WEIGHT: Final = 0.3


class Buckets:
    """One token bucket per key; the least recently used key is evicted."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._buckets: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def take(self, key: bytes, now: float) -> bool:
        """Take a token of `key`; return false if it has none left."""
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
        """Add `item`; return false if it was there already."""
        if item in self._seen:
            return False
        if len(self._seen) >= self._max:
            self._seen.discard(self._order.popleft())
        self._seen.add(item)
        self._order.append(item)
        return True


class SourceStatistics:
    """Statistics of a source: waits for the first byte of a reply, and the transfer rate."""

    def __init__(self, assumed_rate_bytes_s: float) -> None:
        self._waits: deque[float] = deque(maxlen=_SAMPLES)
        self._assumed = assumed_rate_bytes_s
        self._rate: float | None = None

    @property
    def median_wait_s(self) -> float:
        """The median wait for the first byte of a reply, in seconds."""
        return median(self._waits) if self._waits else 0.0

    def add_wait(self, seconds: float) -> None:
        """Note that a reply began after `seconds`."""
        self._waits.append(seconds)

    def add_transfer(self, size_bytes: int, seconds: float) -> None:
        """Note that `size_bytes` of a reply took `seconds`; replies too small to measure the rate are ignored."""
        if size_bytes < MIN_SAMPLE_BYTES:
            return
        rate = size_bytes / max(seconds, 1e-6)
        self._rate = rate if self._rate is None else self._rate + _NEW_WEIGHT * (rate - self._rate)

    def add_stall(self, waited_s: float) -> None:
        """Note that no reply came within `waited_s`: expect longer waits and half the rate from now on."""
        self._waits.append(waited_s)
        self._rate = max((self._rate or self._assumed) / 2, self._assumed / 16)

    def compute_limit_s(self, size_bytes: int, at_least_s: float) -> float:
        """Compute the timeout in seconds of a reply of `size_bytes`: max(at least, 3 x median wait + size / rate)."""
        return max(at_least_s, 3 * self.median_wait_s + size_bytes / (self._rate or self._assumed))

    def compute_chunks(self, chunk_bytes: int, target_s: float, max_chunks: int) -> int:
        """Compute how many chunks to request at once so that they take about `target_s`."""
        return max(1, min(max_chunks, int((self._rate or self._assumed) * target_s / chunk_bytes)))

    def compute_window(self, target_s: float, at_most_bytes: int, at_least_bytes: int) -> int:
        """Compute how many bytes to keep in flight."""
        return max(at_least_bytes, min(at_most_bytes, int((self._rate or self._assumed) * target_s)))
