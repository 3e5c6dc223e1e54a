"""Bounded memory of what was seen and how fast it comes: buckets per key, seen-sets, source statistics."""

from collections import OrderedDict, deque
from statistics import median
from typing import Final

from psyche.wire.line.pace import TokenBucket

MAX_BUCKETS: Final = 1_024
MIN_SAMPLE_BYTES: Final = 256 << 10
_SAMPLES: Final = 16
_NEW_WEIGHT: Final = 0.3


class Buckets:
    """A token bucket per key; the key used longest ago makes room for a new one."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = burst
        self._buckets: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def take(self, key: bytes, now: float) -> bool:
        """Whether `key` has a token left."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                self._buckets.popitem(last=False)
            bucket = self._buckets[key] = TokenBucket(self._rate, self._burst, now)
        self._buckets.move_to_end(key)
        return bucket.take(now)


class SeenSet:
    """The last `max_items` hashes; adding one more forgets the oldest."""

    def __init__(self, max_items: int) -> None:
        self._max = max_items
        self._seen: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def __contains__(self, item: bytes) -> bool:
        return item in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, item: bytes) -> bool:
        """Remember `item`; false if it was known."""
        if item in self._seen:
            return False
        if len(self._seen) >= self._max:
            self._seen.discard(self._order.popleft())
        self._seen.add(item)
        self._order.append(item)
        return True


class SourceStatistics:
    """How a source has served so far: waits for the first byte of a reply, and its rate."""

    def __init__(self, assumed_rate_bytes_s: float) -> None:
        self._waits: deque[float] = deque(maxlen=_SAMPLES)
        self._assumed = assumed_rate_bytes_s
        self._rate: float | None = None

    @property
    def median_wait_s(self) -> float:
        """Median wait for the first byte of a reply."""
        return median(self._waits) if self._waits else 0.0

    def add_wait(self, seconds: float) -> None:
        """A reply began after `seconds`."""
        self._waits.append(seconds)

    def add_transfer(self, size_bytes: int, seconds: float) -> None:
        """`size_bytes` of a reply came within `seconds`; small replies say nothing of the rate."""
        if size_bytes < MIN_SAMPLE_BYTES:
            return
        rate = size_bytes / max(seconds, 1e-6)
        self._rate = rate if self._rate is None else self._rate + _NEW_WEIGHT * (rate - self._rate)

    def add_stall(self, waited_s: float) -> None:
        """A reply did not come within `waited_s`: expect longer waits and half of the rate from now on."""
        self._waits.append(waited_s)
        self._rate = max((self._rate or self._assumed) / 2, self._assumed / 16)

    def compute_limit_s(self, size_bytes: int, at_least_s: float) -> float:
        """How long a reply of `size_bytes` may take: max(at least, 3 x median + size / rate)."""
        return max(at_least_s, 3 * self.median_wait_s + size_bytes / (self._rate or self._assumed))

    def compute_chunks(self, chunk_bytes: int, target_s: float, max_chunks: int) -> int:
        """How many chunks to ask for at once so that they take about `target_s`."""
        return max(1, min(max_chunks, int((self._rate or self._assumed) * target_s / chunk_bytes)))

    def compute_window(self, target_s: float, at_most_bytes: int, at_least_bytes: int) -> int:
        """How many bytes to have on their way at once."""
        return max(at_least_bytes, min(at_most_bytes, int((self._rate or self._assumed) * target_s)))
