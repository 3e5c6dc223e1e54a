"""A progress bar for commands that run to an end."""

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from psyche.telemetry.console import Console
from psyche.telemetry.text import format_bytes, format_seconds

WIDTH: Final = 30  # of the bar, where there is room
SHORTEST: Final = 5
EVERY_S: Final = 0.1
PLAIN_EVERY_S: Final = 5.0


class ProgressBar:
    """`tokenizing [#####     ] 52 % 14.1 MB of 27.0 MB, 2 s left`; without a terminal a line every five seconds."""

    def __init__(
        self, title: str, console: Console | None = None, *, now: Callable[[], float] = time.monotonic,
        show: Callable[[int], str] = format_bytes,
    ) -> None:  # fmt: skip
        self._title = title
        self._console = console or Console()
        self._now = now
        self._show = show
        self._started = now()
        self._shown_at = -math.inf if self._console.live else self._started  # a terminal shows life at once

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._console.clear_status()

    def set(self, done: int, total: int, note: str = "") -> None:
        now = self._now()
        if now - self._shown_at < (EVERY_S if self._console.live else PLAIN_EVERY_S):
            return
        self._shown_at = now
        columns = self._console.columns - 1
        text = format_progress(self._title, done, total, now - self._started, self._show, note, columns)
        if self._console.live:
            self._console.set_status(text)
        else:
            self._console.print(text)


def format_progress(
    title: str, done: int, total: int, elapsed_s: float, show: Callable[[int], str] = format_bytes, note: str = "",
    columns: int = 120,
) -> str:  # fmt: skip
    """One line with bar, percentage, amounts and the time left at this pace; a bar as long as `columns` allow."""
    share = min(1.0, done / total) if total else 1.0
    left = f", {format_seconds(elapsed_s * (1 - share) / share)} left" if 0 < share < 1 else ""
    amounts = f"{share:4.0%} {show(done)} of {show(total)}"
    figures = f"{amounts}{f', {note}' if note else ''}{left}"
    width = min(WIDTH, columns - len(f"{title} [] {figures}"))
    if width >= SHORTEST:
        return f"{title} [{'#' * int(share * width):<{width}}] {figures}"
    line = f"{title} {figures}"
    return line if len(line) <= columns else f"{title} {amounts}{left}\n{note}"
