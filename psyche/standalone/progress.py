"""The progress of a training: one line that is redrawn on a terminal, a line every few seconds elsewhere."""

from collections.abc import Callable
from time import monotonic
from typing import Final

from psyche.standalone.train import StepProgress
from psyche.telemetry.console import Console
from psyche.telemetry.text import format_count, format_seconds

BAR_CELLS: Final = 24
LIVE_EVERY_S: Final = 0.1
PLAIN_EVERY_S: Final = 5.0


def format_line(progress: StepProgress, held_out: float | None, columns: int = 120) -> str:
    """The line of one step; `held_out` is the newest known held-out loss. The last figures go where room is short."""
    done = progress.step / progress.steps
    filled = round(done * BAR_CELLS)
    left_s = progress.seconds * (1 - done) / done
    parts = [
        f"step {progress.step}/{progress.steps}",
        f"loss {progress.report.loss:.3f}",
        *([] if held_out is None else [f"held out {held_out:.3f}"]),
        f"{format_seconds(left_s)} left" if done < 1 else format_seconds(progress.seconds),
        f"{format_count(progress.tokens / max(progress.seconds, 1e-9))} tokens/s",
        f"lr {progress.lr:.2e}",
    ]
    line = f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] " + parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 2 > columns:
            break
        line += f", {part}"
    return line


class ProgressLine:
    """Called with every step's progress; `close` keeps the last line on the screen."""

    def __init__(self, console: Console | None = None, now: Callable[[], float] = monotonic) -> None:
        self._console = console or Console()
        self._now = now
        self._shown_at = float("-inf")
        self._held_out: float | None = None
        self._line = ""

    def __call__(self, progress: StepProgress) -> None:
        """Show a step, if enough time has passed since the last one shown."""
        self._held_out = self._held_out if progress.held_out is None else progress.held_out
        self._line = format_line(progress, self._held_out, self._console.columns - 1)
        every_s = LIVE_EVERY_S if self._console.live else PLAIN_EVERY_S
        if self._now() - self._shown_at < every_s and progress.step < progress.steps:
            return
        self._shown_at = self._now()
        if self._console.live:
            self._console.set_status(self._line)
        else:
            self._console.print(self._line)

    def close(self) -> None:
        """End the line, so that the last state stays in the terminal's history."""
        if self._console.live and self._line:
            self._console.clear_status()
            self._console.print(self._line)
