"""Rates over a sliding window, in constant memory."""

import time
from collections import deque
from collections.abc import Callable

BUCKETS = 20


class Rate:
    """An amount per second over the last `window_s` seconds, computed from at most `BUCKETS` sums."""

    def __init__(self, window_s: float = 30.0, *, now: Callable[[], float] = time.monotonic) -> None:
        if window_s <= 0:
            raise ValueError(f"rate: window_s {window_s} must be above 0")
        self.total = 0.0
        self._window_s = window_s
        self._now = now
        self._start = now()
        self._buckets: deque[tuple[int, float]] = deque(maxlen=BUCKETS)  # (bucket number, sum), rising

    def add(self, amount: float) -> None:
        self.total += amount
        number = self._get_bucket(self._now())
        if self._buckets and self._buckets[-1][0] >= number:  # if the clock goes back, use the newest bucket
            last, total = self._buckets[-1]
            self._buckets[-1] = (last, total + amount)
        else:
            self._buckets.append((number, amount))

    def per_second(self) -> float:
        """The rate over the window, or over the time since the start if that is shorter."""
        now = self._now()
        oldest = self._get_bucket(now) - BUCKETS + 1
        amount = sum(total for number, total in self._buckets if number >= oldest)
        elapsed = min(self._window_s, now - self._start)
        return amount / max(elapsed, self._window_s / BUCKETS)  # avoids wild figures at the start

    def _get_bucket(self, now: float) -> int:
        return int((now - self._start) * BUCKETS / self._window_s)
