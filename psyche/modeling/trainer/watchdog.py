"""The time limit of a trainer's silence, after which it counts as hung (F21)."""

import statistics
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Final

HISTORY: Final = 32  # calls remembered per operation
KNOWN: Final = 3  # calls after which the median is meaningful


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """Limits in seconds of silence; a trainer sends a beat at every micro-batch and every tensor.

    `start_s` bounds the start of the process (imports), `load_s` a load (loading a Hugging Face folder sends
    no beats), `unknown_s` any other call before its durations are known. `floor_s` keeps a swapping or
    overloaded machine from looking like a hang.
    """

    start_s: float = 180.0
    load_s: float = 600.0
    unknown_s: float = 120.0
    floor_s: float = 10.0


class Watchdog:
    def __init__(self, limits: WatchdogLimits) -> None:
        self.limits = limits
        self._seconds: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=HISTORY))

    def note(self, operation: str, seconds: float) -> None:
        self._seconds[operation].append(seconds)

    def get_limit_s(self, operation: str) -> float:
        """The longest silence allowed while `operation` runs.

        For a train step it is twice the median of the last 32 steps, at least the floor. Other operations vary with
        their input, so for them it is four times the longest call seen, at least `unknown_s`.
        """
        if operation == "load":
            return self.limits.load_s
        seen = self._seconds[operation]
        if operation != "train":
            return max(self.limits.unknown_s, 4 * max(seen, default=0.0))
        if len(seen) < KNOWN:
            return self.limits.unknown_s
        return max(self.limits.floor_s, 2 * statistics.median(seen))
