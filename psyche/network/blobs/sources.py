"""What a node knows of the sources of blobs: how fast each is, and which are banned."""

import logging
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from psyche.network.limits import NetworkLimits

_log: Final = logging.getLogger("psyche.network")
MAX_SOURCES: Final = 1_024
MIN_SAMPLE_BYTES: Final = 256 << 10
_SAMPLES: Final = 16
_NEW_WEIGHT: Final = 0.3


class SourceStatistics:
    def __init__(self, assumed_rate_bytes_s: float) -> None:
        self._waits: deque[float] = deque(maxlen=_SAMPLES)
        self._assumed = assumed_rate_bytes_s
        self._measured: float | None = None

    @property
    def rate_bytes_s(self) -> float:
        return self._measured or self._assumed

    def add_wait(self, seconds: float) -> None:
        self._waits.append(seconds)

    def add_transfer(self, size_bytes: int, seconds: float) -> None:
        if size_bytes < MIN_SAMPLE_BYTES:
            return
        rate, known = size_bytes / max(seconds, 1e-6), self._measured
        self._measured = rate if known is None else known + _NEW_WEIGHT * (rate - known)

    def add_stall(self, waited_s: float) -> None:
        """Note that no reply came within `waited_s`: expect longer waits and half the rate from now on."""
        self._waits.append(waited_s)
        self._measured = max(self.rate_bytes_s / 2, self._assumed / 16)

    def compute_limit_s(self, size_bytes: int, at_least_s: float) -> float:
        """Compute the timeout in seconds of a reply of `size_bytes`: max(at least, 3 x median wait + size / rate)."""
        wait_s = median(self._waits) if self._waits else 0.0
        return max(at_least_s, 3 * wait_s + size_bytes / self.rate_bytes_s)

    def compute_chunks(self, chunk_bytes: int, target_s: float, max_chunks: int) -> int:
        return max(1, min(max_chunks, int(self.rate_bytes_s * target_s / chunk_bytes)))

    def compute_window(self, target_s: float, at_most_bytes: int, at_least_bytes: int) -> int:
        return max(at_least_bytes, min(at_most_bytes, int(self.rate_bytes_s * target_s)))


@dataclass(slots=True)
class SourceBook:
    """Statistics and bans of the node's sources, kept across fetches; bans are cleared when the run changes."""

    limits: NetworkLimits
    banned: dict[bytes, str] = field(default_factory=dict)
    statistics: dict[bytes, SourceStatistics] = field(default_factory=dict)
    bytes_received: int = 0
    asked_bytes: int = 0  # requested by all fetches together and not received yet

    def get_statistics(self, key: bytes) -> SourceStatistics:
        found = self.statistics.get(key)
        if found is None:
            if len(self.statistics) >= MAX_SOURCES:
                self.statistics.pop(next(iter(self.statistics)))
            found = self.statistics[key] = SourceStatistics(self.limits.slowest_rate_bytes_s)
        return found

    def ban(self, key: bytes, why: str) -> None:
        if len(self.banned) < MAX_SOURCES:
            self.banned[key] = why
        _log.warning("source %s is banned for the run: %s", key.hex()[:16], why)
