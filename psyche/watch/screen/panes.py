"""The parts of the screen that keep something between two looks: tables, log lines, traffic, a question."""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from rich.cells import set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, RichLog, Static

from psyche.analysis.members import MemberView
from psyche.analysis.run_view import MAX_LINES, RunView
from psyche.telemetry.text import format_clock
from psyche.watch.play import PlaySource
from psyche.watch.screen.words import write_line

RATE_SAMPLES: Final = 20


class Panel(Static):
    """Text without markup that is drawn anew where it has changed, and laid out where it has more or fewer lines."""

    def __init__(self, text: str = "", *, name: str = "") -> None:
        super().__init__(text, id=name or None, markup=False)
        self._shown = Text()

    def show(self, text: Text) -> None:
        if text == self._shown:
            return
        self._shown = text
        self.update(text, layout=False)
        columns, rows = self.content_size
        if not columns or self.visual.get_height({}, columns) != rows:
            self.refresh(layout=True)


class Table(ScrollView, can_focus=True):
    """A table as `format_table` writes it, with a cursor: its head stays, and only lines in view are drawn.

    textual's own table draws cell by cell, which takes a sixth of a core where hundreds of members change all the time.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False), Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False), Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-10000)", show=False), Binding("end", "move(10000)", show=False),
    ]  # fmt: skip

    class Moved(Message):
        """The cursor is in another row."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.row = 0  # of the cursor
        self._head, self._rows = "", list[str]()

    def show(self, table: str) -> None:
        before = (self._head, *self._rows)
        self._head, *self._rows = table.splitlines() or [""]
        if before == (self._head, *self._rows):
            return
        self.virtual_size = Size(max(map(len, (self._head, *self._rows))), len(self._rows) + 1)
        self.row = max(0, min(self.row, len(self._rows) - 1))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        row = top + y - 1
        text = self._head if not y else self._rows[row] if row < len(self._rows) else ""
        style = self.rich_style + Style(bold=not y, reverse=bool(y and text and row == self.row))
        wide = max(self.size.width, self.virtual_size.width)
        return Strip([Segment(set_cell_size(text, wide), style)], wide).crop(left, left + self.size.width)

    def action_move(self, rows: int) -> None:
        self._go(self.row + rows)

    def action_page(self, pages: int) -> None:
        self._go(self.row + pages * max(1, self.size.height - 2))

    def on_click(self, event: Click) -> None:
        if event.y:
            self._go(self.scroll_offset.y + event.y - 1)

    def _go(self, row: int) -> None:
        self.row = max(0, min(row, len(self._rows) - 1))
        top = min(max(self.scroll_offset.y, self.row - self.size.height + 2), self.row)
        self.scroll_to(y=top, animate=False)
        self.refresh()
        self.post_message(self.Moved())


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

    def take(self, members: Sequence[MemberView], now: float) -> None:
        for one in members:
            samples = self._samples.setdefault(one.key, deque(maxlen=RATE_SAMPLES))
            sample = Sample(now, one.bytes_sent or 0, one.bytes_received or 0)
            if samples and not samples[-1] <= sample:  # it began anew, or the replay went back
                samples.clear()
            if not samples or now - samples[-1].t >= 1:
                samples.append(sample)
        self._samples = {one.key: self._samples[one.key] for one in members}

    def compute_rates(self) -> dict[str, tuple[float, float]]:
        """Bytes a second up and down, by key."""
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
