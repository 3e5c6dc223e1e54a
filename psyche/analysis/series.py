"""A series of points over a run's steps that stays small however long the run is."""

from collections.abc import Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from psyche.telemetry.types import RoundOver
from psyche.wire.history import MAX_LOSS, MAX_POINTS, HistoryPoint
from psyche.wire.report import MAX_TOKENS_PER_S

NEWEST = 200  # points that are never left out


_OF_EVENTS: Final = [name for name in HistoryPoint.__struct_fields__ if name in RoundOver.__struct_fields__]


class Stepped(Protocol):
    @property
    def step(self) -> int: ...


P = TypeVar("P", bound=Stepped)


class Series(Generic[P]):
    """Points of rising steps, at most `most`: of older ones every second, fourth, eighth ... step is left.

    A run that goes back to its checkpoint repeats steps; their first points are cut.
    """

    def __init__(self, points: Iterable[P] = (), most: int = MAX_POINTS) -> None:
        self.most = most
        self.stride = 1
        self.cut = 0  # points of steps that the run went back behind
        self._points: list[P] = []
        self.extend(points)

    def add(self, point: P) -> None:
        points = self._points
        while points and points[-1].step >= point.step:
            points.pop()
            self.cut += 1
        points.append(point)
        while len(self._points) > self.most:
            self._thin()

    def extend(self, points: Iterable[P]) -> None:
        for point in points:
            self.add(point)

    def _thin(self) -> None:
        kept = min(NEWEST, self.most // 2)
        older, newest = self._points[:-kept], self._points[-kept:]
        self._points = [point for point in older if not point.step % self.stride] + newest
        if len(self._points) > self.most * 3 // 4:
            self.stride *= 2

    def after(self, step: int) -> list[P]:
        """The points of later steps."""
        first = len(self._points)
        while first and self._points[first - 1].step > step:
            first -= 1
        return self._points[first:]

    @property
    def last(self) -> P | None:
        return self._points[-1] if self._points else None

    def __iter__(self) -> Iterator[P]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def make_point(event: RoundOver) -> HistoryPoint:
    """The point of a round that a server's log tells of."""
    return HistoryPoint(**{name: getattr(event, name) for name in _OF_EVENTS})


def is_loss(loss: float | None) -> bool:
    return loss is not None and 0.0 <= loss <= MAX_LOSS


def clean_point(point: HistoryPoint) -> HistoryPoint:
    """A point without numbers that no round can have."""
    losses = {name: getattr(point, name) for name in ("loss", "least", "greatest")}
    wrong = {name: None for name, loss in losses.items() if loss is not None and not is_loss(loss)}
    wrong |= {name: 0.0 for name in ("seconds", "tokens_per_s") if not 0.0 <= getattr(point, name) <= MAX_TOKENS_PER_S}
    rate = point.learning_rate
    wrong |= {} if rate is None or 0.0 <= rate <= MAX_LOSS else {"learning_rate": None}
    return msgspec.structs.replace(point, **wrong) if wrong else point
