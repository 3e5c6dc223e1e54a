"""Time spans and their overlaps."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Span:
    """A span of time, in seconds on the log's clock."""

    start: float
    end: float


def find_spans(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """The spans, of a sorted sequence, that touch the time from `start` to `end`."""
    first = bisect_left(spans, start, key=lambda span: span.end)
    found: list[Span] = []
    for span in spans[first:]:
        if span.start >= end:
            break
        found.append(span)
    return found


def take_out(left: Iterable[Span], taken: Sequence[Span]) -> tuple[float, list[Span]]:
    """The seconds of `left` that lie within `taken`, and the rest of `left`."""
    seconds, rest = 0.0, list(left)
    for span in taken:
        parts: list[Span] = []
        for free in rest:
            start, end = max(free.start, span.start), min(free.end, span.end)
            if start >= end:
                parts.append(free)
                continue
            seconds += end - start
            parts += [part for part in (Span(free.start, start), Span(end, free.end)) if part.start < part.end]
        rest = parts
    return seconds, rest
