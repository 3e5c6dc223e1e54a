"""Replays a finished run from its event logs: from any moment, at any speed, forwards and back."""

import time
from bisect import bisect_right
from pathlib import Path
from typing import Final

import trio

from psyche.analysis.run_view import RunView
from psyche.errors import ConfigError
from psyche.telemetry import types
from psyche.telemetry.events import Entry
from psyche.watch.sources import EVENTS_AT_ONCE, LogSource

SPEEDS: Final = (1, 2, 5, 10, 30, 60, 300)


class PlaySource(LogSource):
    """A log source whose view is that of a moment, `at`; the moment goes on by itself while `is_playing`.

    The logs are read once for the times of the rounds, and again whenever the moment goes back: nothing but the rounds
    is remembered. What is written meanwhile is not shown.
    """

    every_s = 0.2

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_playing = True
        self.speed = 10
        self.rounds: list[tuple[float, int, int, int]] = []  # when each began, epoch, height, step; by time
        self.start = self.end = self.at = 0.0
        self._shown = float("inf")  # the moment that the view shows
        self._next: Entry | None = None
        self._ticked = 0.0

    async def refresh(self) -> bool:
        now = time.monotonic()
        if self.is_playing and self._ticked:
            self.seek(self.at + (now - self._ticked) * self.speed)
        self._ticked = now
        return await trio.to_thread.run_sync(self.read)

    def read(self) -> bool:
        """Fold in events up to the moment, at most `EVENTS_AT_ONCE`; blocks."""
        if not self.end:
            self._find_rounds()
        if self._shown > self.at:
            self._rewind()
        for _ in range(EVENTS_AT_ONCE):
            if self._next is None or self._next[0] > self.at:
                self._shown = self.at
                return False
            self.view.take(self._next)
            self._next = next(self._entries, None)
        self._shown = self._next[0] if self._next is not None else self.at
        return True

    def seek(self, t: float) -> None:
        self.at = min(max(t, self.start), self.end)

    def seek_round(self, text: str) -> None:
        """Jump to `EPOCH.ROUND` or to a step.

        Raises:
            ConfigError: there is none, and what there is.
        """
        wanted = text.strip()
        for t, epoch, height, step in self.rounds:
            if wanted in (f"{epoch}.{height}", str(step)):
                self.seek(t)
                return
        first, last = self.rounds[0], self.rounds[-1]
        raise ConfigError(
            f"{wanted!r}: no such round; rounds are {first[1]}.{first[2]} to {last[1]}.{last[2]} (epoch.round), "
            f"steps {first[3]} to {last[3]}"
        )

    def step_rounds(self, count: int) -> None:
        """Go on or back by a number of rounds."""
        place = bisect_right(self.rounds, (self.at, 1 << 62)) - 1 + count
        self.seek(self.rounds[min(max(place, 0), len(self.rounds) - 1)][0])

    def _find_rounds(self) -> None:
        self._rewind()
        seen: set[tuple[int, int]] = set()
        entry = self._next
        while entry is not None:
            t, _, event = entry
            self.start, self.end = self.start or t, max(self.end, t)
            if isinstance(event, types.RoundStarted) and (event.epoch, event.height) not in seen:
                seen.add((event.epoch, event.height))
                self.rounds.append((t, event.epoch, event.height, event.step))
            entry = next(self._entries, None)
        if not self.rounds:
            raise ConfigError(f"{self._path}: has no round to play; name a folder with the event log of a client")
        self.at = self.start
        self._rewind()

    def _rewind(self) -> None:
        self.view = RunView(self.view.name)
        self._tails.clear()
        self._look_at = float("-inf")
        self._find_logs()
        self._entries = self._merge()
        self._next = next(self._entries, None)
        self._shown = self._next[0] if self._next is not None else 0.0
