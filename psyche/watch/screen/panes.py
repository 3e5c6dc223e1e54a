"""The parts of the screen that keep something between two looks: tables, log lines, traffic, a question."""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from rich.console import JustifyMethod
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Click
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, RichLog, Static

from psyche.analysis.members import MemberView
from psyche.analysis.run_view import MAX_LINES, RunView
from psyche.telemetry.text import format_clock
from psyche.watch.play import PlaySource
from psyche.watch.screen.words import write_line

RATE_SAMPLES: Final = 20


class Table(DataTable[Text]):
    """A table of text without markup, whose rows keep their place and the cursor; empty columns are left out."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=True)
        self._shown: tuple[tuple[str, ...], dict[str, tuple[str, ...]]] = ((), {})

    def show(self, head: Sequence[str], rows: dict[str, tuple[str, ...]], *, left: int = 1) -> None:
        """Replace what is shown; `rows` by key, of which the first `left` columns are left-aligned."""
        used = [n for n in range(len(head)) if any(row[n] not in ("", "-") for row in rows.values())]
        columns = tuple(head[place] for place in used)
        cells = {key: tuple(row[place] for place in used) for key, row in rows.items()}
        aligned: list[JustifyMethod] = ["left" if place < left else "right" for place in used]
        columns_before, before = self._shown
        if (columns, [*cells]) != (columns_before, [*before]):
            cursor = self.cursor_row
            self.clear(columns=True)
            for name, side in zip(columns, aligned, strict=True):
                self.add_column(Text(name, justify=side), key=name)
            for key, row in cells.items():
                self.add_row(*(Text(cell, justify=side) for cell, side in zip(row, aligned, strict=True)), key=key)
            self.move_cursor(row=cursor)
        else:
            for key, row in cells.items():
                for name, cell, side, old in zip(columns, row, aligned, before[key], strict=True):
                    if cell != old:
                        self.update_cell(key, name, Text(cell, justify=side), update_width=True)
        self._shown = (columns, cells)


class LogLines(RichLog):
    """The lines of a run, from all sources that show it."""

    def __init__(self) -> None:
        super().__init__(id="lines", max_lines=MAX_LINES, wrap=True, markup=False)
        self._after: dict[int, int] = {}  # number of the last line, by view

    def show(self, views: Sequence[RunView]) -> None:
        if not {*self._after} <= {id(view) for view in views}:
            self.clear()
            self._after.clear()
        found = [(line.t, id(view), line) for view in views for line in view.get_lines(self._after.get(id(view), 0))]
        for _, view, line in sorted(found, key=lambda one: one[0]):
            self.write(write_line(line))
            self._after[view] = max(line.number, self._after.get(view, 0))


class Sample(NamedTuple):
    t: float
    sent: int
    received: int


class Traffic:
    """How fast each member sends and receives, by what it has told lately."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}

    def take(self, members: Sequence[MemberView], now: float) -> dict[str, tuple[float, float]]:
        """Bytes a second up and down, by key."""
        for one in members:
            samples = self._samples.setdefault(one.key, deque(maxlen=RATE_SAMPLES))
            sample = Sample(now, one.bytes_sent or 0, one.bytes_received or 0)
            if samples and not samples[-1] <= sample:  # it began anew, or the replay went back
                samples.clear()
            if not samples or now - samples[-1].t >= 1:
                samples.append(sample)
        self._samples = {one.key: self._samples[one.key] for one in members}
        return {key: _compute_rates(samples) for key, samples in self._samples.items()}


def _compute_rates(samples: Sequence[Sample]) -> tuple[float, float]:
    first, last = samples[0], samples[-1]
    seconds = last.t - first.t
    if not seconds:
        return 0.0, 0.0
    return max(0, last.sent - first.sent) / seconds, max(0, last.received - first.received) / seconds


class Question(ModalScreen[bool]):
    """A question before a change; yes only by `y`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self._question}\n\ny: yes    n: no"))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class RoundInput(ModalScreen[str]):
    """Asks for a round to jump to."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss('')", "Back")]

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text("Jump to which round? EPOCH.ROUND, or a step: 1.14 or 96"))
            yield Input(max_length=20)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Scrubber(Static):
    """Where a replay is; a click goes there."""

    def __init__(self, play: PlaySource) -> None:
        super().__init__(id="scrubber", markup=False)
        self._play = play
        self._left, self._width = 0, 1

    def show(self) -> None:
        play = self._play
        state = f" {'>' if play.is_playing else '||'} {play.speed}x "
        clock = f" {format_clock(play.at)} of {format_clock(play.end)}"
        self._left, self._width = len(state), max(1, self.size.width - len(state) - len(clock))
        done = round(self._width * (play.at - play.start) / max(1e-9, play.end - play.start))
        self.update(Text.assemble(state, ("━" * done, "bold cyan"), ("─" * (self._width - done), "dim"), clock))

    def on_click(self, event: Click) -> None:
        play = self._play
        play.seek(play.start + (play.end - play.start) * (event.x - self._left) / self._width)
