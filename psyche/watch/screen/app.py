"""The screen: draws runs after each look at their sources, and takes keys."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import outcome
import trio
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, TabbedContent, TabPane

from psyche.analysis.members import MemberView
from psyche.analysis.run_view import RunView
from psyche.core.state.messages import Message, Pause, Resume
from psyche.errors import ConfigError, PsycheError
from psyche.telemetry.text import format_table
from psyche.watch.alerts import Alerts
from psyche.watch.app import Watcher
from psyche.watch.page import format_members_table
from psyche.watch.play import SPEEDS, PlaySource
from psyche.watch.screen.panes import LogLines, Panel, Question, RoundInput, Scrubber, Table, Traffic
from psyche.watch.screen.words import write_member, write_run, write_top, write_traffic
from psyche.watch.sources import Source
from psyche.wire.nursery import open_plain_nursery

CLOCK_S: Final = 0.9  # at least, between two drawings of a run that goes on
ROWS_PER_S: Final = 64  # of a table: one of hundreds of members is drawn less often
TRAFFIC_HEAD: Final = ("member", "up", "down", "up now", "down now", "waits for")
Command = Callable[[Message], Awaitable[Any]]
CSS: Final = """
#top { height: auto; max-height: 8; padding: 0 1; background: $panel; }
TabbedContent { height: 1fr; }
TabPane { padding: 0 1; }
#scrubber { height: 1; }
#run, Table, LogLines { height: 1fr; scrollbar-size: 1 1; }
#member { height: auto; max-height: 50%; padding: 0 1; border-top: solid $primary; }
ModalScreen { align: center middle; }
ModalScreen > Vertical { width: 70; max-width: 95%; height: auto; padding: 1 2; border: round $primary; }
"""


class WatchScreen(App[None]):
    """Runs `function` of `run_trio` on trio as a guest of its own loop: all is drawn in one thread, between two looks.

    In `function` call `show_sources`, with `command` where the run may be paused.
    """

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "show('run-tab')", "Run"), Binding("2", "show('members-tab')", "Members"),
        Binding("3", "show('network-tab')", "Network"), Binding("4", "show('logs-tab')", "Logs"),
        Binding("n", "next_run", "Next run"), Binding("p", "pause", "Pause/resume"), Binding("q", "leave", "Leave"),
        Binding("ctrl+c", "interrupt", "End", show=False, priority=True),
        Binding("space", "play('toggle')", "Play/stop"), Binding("plus,equals_sign", "play('faster')", "Faster"),
        Binding("minus", "play('slower')", "Slower"), Binding("left", "play('back')", "Back", priority=True),
        Binding("right", "play('on')", "On", priority=True), Binding("g", "jump", "Round"),
    ]  # fmt: skip

    def __init__(self, now: Callable[[], float] = time.time, play: PlaySource | None = None) -> None:
        super().__init__()
        self._play = play
        self._scrubber = None if play is None else Scrubber(play)
        self.is_interrupted = False
        self.now = now
        self._sources: Sequence[Source] = ()
        self._place = 0  # of the source that is shown
        self._drawn: tuple[int, int, float] = (0, 0, 0.0)  # source, revision, when
        self._listed = 0.0  # when a table was drawn
        self._command: Command | None = None
        self._nursery: trio.Nursery | None = None
        self._scope: trio.CancelScope | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._function: Callable[[], Awaitable[Any]] | None = None
        self._result: outcome.Outcome[Any] | None = None
        self._traffic = Traffic()
        self._members: Sequence[MemberView] = ()
        self._top, self._run, self._member = Panel("reading ...", name="top"), Panel(), Panel(name="member")
        self._table, self._network, self._lines = Table("members"), Table("network"), LogLines()

    def compose(self) -> ComposeResult:
        yield self._top
        with TabbedContent():
            with TabPane("Run", id="run-tab"), VerticalScroll(id="run"):
                yield self._run
            with TabPane("Members", id="members-tab"):
                yield self._table
                yield self._member
            with TabPane("Network", id="network-tab"):
                yield self._network
            with TabPane("Logs", id="logs-tab"):
                yield self._lines
        if self._scrubber is not None:
            yield self._scrubber
        yield Footer()

    # --- trio ----------------------------------------------------------------------------------------

    def run_trio(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Run the screen until the function has ended or the user leaves; returns or raises what the function does."""
        self._function = function
        self.run()
        return None if self._result is None else self._result.unwrap()

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.action_interrupt)
        trio.lowlevel.start_guest_run(
            self._guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe,  # pyright: ignore[reportArgumentType]
            done_callback=self._end,
            host_uses_signal_set_wakeup_fd=True, restrict_keyboard_interrupt_to_checkpoints=True,
        )  # fmt: skip

    async def _guest(self) -> Any:
        assert self._function is not None
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._scope:  # pyright: ignore[reportCallIssue]  # old stubs
            return await self._function()

    def _end(self, result: outcome.Outcome[Any]) -> None:
        self._result = result
        self.exit()

    async def show_sources(
        self, sources: Sequence[Source], alerts: Alerts | None = None, command: Command | None = None
    ) -> None:
        """Show the sources until the user leaves."""
        self._sources, self._command = sources, command
        self._place = len(sources) - 1 if command is not None else 0  # the backend is named last
        watcher = Watcher(sources, alerts)
        async with open_plain_nursery() as self._nursery:
            self._nursery.start_soon(watcher.run)
            while True:
                await watcher.wait_change()
                self.draw()

    # --- drawing -------------------------------------------------------------------------------------

    @property
    def view(self) -> RunView:
        return self._sources[self._place].view

    def draw(self) -> None:
        now, view = self.now() if self._play is None else self._play.at, self.view
        if self._scrubber is not None:
            self._scrubber.show()
        place, revision, drawn = self._drawn
        is_first, is_new = place != id(view), revision != view.revision
        if not is_first and not (is_new and self._play) and abs(now - drawn) < CLOCK_S:
            return
        self._drawn, self._members = (id(view), view.revision, now), view.get_members()
        columns = max(30, self.size.width - 4)
        self._top.show(write_top(view, self._members, now, columns + 2))
        self._traffic.take(self._members, now)
        tab = self.query_one(TabbedContent).active
        if tab == "logs-tab":
            same = {view.run_id, ""}  # a log that names no run is of what it was named beside
            self._lines.show([one.view for one in self._sources if one.view is view or one.view.run_id in same])
        elif tab == "run-tab":
            if is_first or is_new:  # it tells no time that goes on
                self._run.show(write_run(view, columns, max(10, self.size.height - 8)))
        elif is_first or abs(now - self._listed) >= len(self._members) / ROWS_PER_S:
            self._listed = now
            self._draw_table(tab, now, columns)

    def _draw_table(self, tab: str, now: float, columns: int) -> None:
        if tab == "members-tab":
            self._table.show(format_members_table(self._members, now, columns))
            self._draw_member(now)
        else:
            rates = self._traffic.compute_rates()
            rows = [write_traffic(one, rates[one.key]) for one in self._members]
            self._network.show(format_table(TRAFFIC_HEAD, rows))

    def _draw_member(self, now: float) -> None:
        member = self._members[self._table.row] if self._table.row < len(self._members) else None
        self._member.show(write_member(member, now, max(30, self.size.width - 4)))

    def on_table_moved(self) -> None:
        self._draw_member(self.now() if self._play is None else self._play.at)

    def on_tabbed_content_tab_activated(self) -> None:
        self._drawn = (0, 0, 0.0)
        # Unless a thread changes the view now: then the next look draws, as it does in a replay.
        if self._sources and self._play is None and not self._sources[self._place].still.locked():
            self.draw()

    def on_resize(self) -> None:
        self._drawn = (0, 0, 0.0)  # the next look draws it as wide as it is now

    # --- keys ----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        del parameters
        if action in ("play", "jump"):
            return self._play is not None and len(self.screen_stack) == 1
        return {"pause": self._command is not None, "next_run": len(self._sources) > 1}.get(action, True)

    def action_show(self, tab: str) -> None:
        self.query_one(TabbedContent).active = tab

    def action_next_run(self) -> None:
        self._place = (self._place + 1) % len(self._sources)
        self._drawn = (0, 0, 0.0)

    def action_play(self, what: str) -> None:
        play = self._play
        assert play is not None
        if what == "toggle":
            play.is_playing = not play.is_playing
        elif what in ("back", "on"):
            play.step_rounds(-1 if what == "back" else 1)
        else:
            place = SPEEDS.index(play.speed) + (1 if what == "faster" else -1)
            play.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]

    def action_jump(self) -> None:
        self.push_screen(RoundInput(), self._jump)

    def _jump(self, text: str | None) -> None:
        if text and self._play is not None:
            try:
                self._play.seek_round(text)
            except ConfigError as error:
                self.tell(str(error), is_wrong=True)

    def action_pause(self) -> None:
        status = self.view.status
        if status is None:
            self.tell("the run's backend has not answered yet")
            return
        rests = self.view.is_at_rest
        question = "Resume the run? Its clients join again." if rests else (
            "Pause the run? If an epoch is training, it ends early, and everybody saves."
        )  # fmt: skip
        message: Message = Resume() if rests else Pause()
        self.push_screen(Question(question), lambda yes: self._start(message) if yes else None)

    def _start(self, message: Message) -> None:
        if self._token is not None and self._nursery is not None:
            self._token.run_sync_soon(self._nursery.start_soon, self._carry_out, message)

    async def _carry_out(self, message: Message) -> None:
        assert self._command is not None
        try:
            await self._command(message)
        except PsycheError as error:
            self.tell(str(error), is_wrong=True)
        else:
            self.tell("the run pauses" if isinstance(message, Pause) else "the run resumes")

    def tell(self, text: str, *, is_wrong: bool = False) -> None:
        self.notify(text, severity="error" if is_wrong else "information", markup=False)

    def action_leave(self) -> None:
        if self._token is None or self._scope is None or self._scope.cancel_called:  # it hangs on its way out
            self.exit()
            return
        self._token.run_sync_soon(self._scope.cancel)

    def action_interrupt(self) -> None:
        self.is_interrupted = True
        self.action_leave()
