"""Whether what is kept grows: a straight line through each epoch's most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SKIPPED_SHARE: Final = 4  # a quarter of the epochs: until everything has been there, in every combination
LEAST_EPOCHS: Final = 4
LEAST_GROWTH: Final = 2  # things over the whole time: what is now none and now one does not grow


@dataclass(frozen=True, slots=True)
class Trend:
    """How much something grows in an hour, as a share of its mean, and the standard error of that."""

    what: str
    slope: float
    error: float


def compute_trends(samples: Sequence[tuple[float, dict[str, int]]]) -> list[Trend]:
    """A trend for everything that was measured; samples are (seconds, most of each thing since the last one)."""
    used = samples[len(samples) // SKIPPED_SHARE :]
    names = sorted({name for _, values in used for name in values})
    series = {name: [(at_s / 3_600, float(v[name])) for at_s, v in used if name in v] for name in names}
    return [_fit(name, points) for name, points in series.items() if len(points) >= LEAST_EPOCHS]


def _fit(what: str, points: list[tuple[float, float]]) -> Trend:
    n = len(points)
    mean_t, mean_v = sum(t for t, _ in points) / n, sum(v for _, v in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in points) / spread if spread else 0.0
    if abs(slope) * (points[-1][0] - points[0][0]) < LEAST_GROWTH:
        return Trend(what, 0.0, 0.0)
    rest = sum((v - mean_v - slope * (t - mean_t)) ** 2 for t, v in points)
    return Trend(what, slope / mean_v, math.sqrt(rest / max(1, n - 2) / spread) / mean_v)
