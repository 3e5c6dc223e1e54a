"""The watcher: refreshes sources, wakes who draws them, prints them on a console, and raises alerts."""

import errno
import logging
import os
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from psyche.analysis.run_view import RunView
from psyche.core.state.enums import RunState
from psyche.telemetry.console import Console
from psyche.telemetry.run_line import WriteCommand, write_briefly
from psyche.telemetry.status import PHASES, Pace, get_stage
from psyche.telemetry.text import format_clock
from psyche.watch.alerts import Alerts
from psyche.watch.page import format_line, format_view
from psyche.watch.saved import write_page
from psyche.watch.sources import Source
from psyche.wire.nursery import open_plain_nursery

PLAIN_EVERY_S: Final = 10.0
CATCH_UP_S: Final = 2.0
TELL_AGAIN_S: Final = 30.0  # what happens again and again
LAST_LINE: Final = "Ctrl-C ends this"
FINISHED: Final = PHASES[RunState.FINISHED]


class Watcher:
    """Refreshes sources while `run` runs. Draw their views in `hold_still`, without a wait in between."""

    def __init__(self, sources: Sequence[Source], alerts: Alerts | None = None) -> None:
        self.sources = tuple(sources)
        self.is_read = trio.Event()  # all that was there at the start has been taken
        self.is_ended = trio.Event()  # nobody waits for more: followers bring to an end what they do
        self._alerts = alerts
        self._changed = trio.Event()
        self._reading = trio.Lock()  # one question at a time

    @property
    def views(self) -> list[RunView]:
        return [source.view for source in self.sources]

    @property
    def is_over(self) -> bool:
        return all(view.phase == FINISHED and not view.problem for view in self.views)

    async def run(self) -> None:
        async with open_plain_nursery() as nursery:
            if self._alerts is not None:
                nursery.start_soon(self._alerts.run)
            while True:
                if await self._refresh():
                    continue  # who draws is woken only before a pause: no thread may read meanwhile
                self._changed.set()
                self._changed = trio.Event()
                self.is_read.set()
                if self._alerts is not None:
                    self._alerts.look(self.views, time.time())
                await trio.sleep(min(source.every_s for source in self.sources))

    async def _refresh(self) -> bool:
        async with self._reading:
            return any([await source.refresh() for source in self.sources])

    async def catch_up(self) -> None:
        """Take what has come since the last look, when `run` has ended; of a backend as far as it answers at once."""
        with trio.move_on_after(CATCH_UP_S):
            while await self._refresh():
                pass

    @asynccontextmanager
    async def hold_still(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for source in self.sources:
                await stack.enter_async_context(source.still)
            yield

    async def wait_change(self) -> None:
        await self._changed.wait()


class ConsoleView:
    """Prints runs: a page in place on a terminal, elsewhere a line now and then."""

    def __init__(
        self, views: Sequence[RunView], console: Console, *, now: Callable[[], float] = time.time,
        write: WriteCommand = write_briefly,
    ) -> None:  # fmt: skip
        self.views, self.console = views, console
        self.now, self._write = now, write
        self._paces = [Pace(PLAIN_EVERY_S) for _ in views]
        self._read = [0 for _ in views]  # the number of the last line
        self._told: dict[str, float] = {}  # when each line was last printed
        self._page = ""
        self.address = ""  # of the page for browsers

    def skip_lines(self) -> None:
        """Pass over what happened before: only what comes gets lines."""
        self._read = [max((line.number for line in view.get_lines()), default=0) for view in self.views]

    def refresh(self) -> None:
        now = self.now()
        for place, view in enumerate(self.views):
            for line in view.get_lines(self._read[place]):
                self._read[place] = line.number
                if line.level >= logging.WARNING:
                    self._tell(now, f"{line.node} {line.text}")
        self.draw(now)
        if self.console.is_broken:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _tell(self, now: float, text: str) -> None:
        """Print a line, but not what happens again and again."""
        if now - self._told.get(text, float("-inf")) >= TELL_AGAIN_S:
            self._told = {known: at for known, at in self._told.items() if now - at < TELL_AGAIN_S} | {text: now}
            self.say(text)

    def say(self, text: str) -> None:
        self.console.print(f"{format_clock(self.now())}  {text}")

    def draw(self, now: float) -> None:
        if self.console.live:
            columns = self.console.columns - 1
            self._page = "\n\n".join(format_view(view, now, columns, write=self._write) for view in self.views)
            lines, rows = self._page.splitlines(), max(1, shutil.get_terminal_size().lines - 3)
            cut = len(lines) - rows
            shown = lines if cut <= 0 else [*lines[:rows], f"... {cut} more lines do not fit on this terminal"]
            where = f"page: {self.address}; " if self.address else ""
            self.console.set_status("\n".join([*shown, f"at {format_clock(now)}; {where}{LAST_LINE}"]))
            return
        for view, pace in zip(self.views, self._paces, strict=True):
            troubles, status = tuple(one[:2] for one in view.get_troubles(now)), view.status
            who = () if status is None else (status.members, status.waiting, status.pending_pause)
            if pace.is_due(now, (get_stage(view.phase), view.members, who, troubles), view.step):
                self.say(format_line(view, now))

    def close(self) -> None:
        self.console.clear_status()
        if self.console.live and self._page:
            self.console.print(self._page)


OpenPage = Callable[[Watcher], AbstractAsyncContextManager[str]]  # gives its address
Follow = Callable[[Watcher, Callable[[str], None]], Awaitable[None]]  # until `is_ended`; gets what prints a line


async def watch(
    sources: Sequence[Source], console: Console, alerts: Alerts | None = None, *, once: bool = False,
    make_view: Callable[[Sequence[RunView], Console], ConsoleView] = ConsoleView,
    web: OpenPage | None = None, save: Path | None = None, followers: Sequence[Follow] = (),
) -> None:  # fmt: skip
    """Show runs until all are finished; `once`: print them as they are now.

    `web` serves a page until this is ended, `save` a file that gets the page at the end. `followers` go on beside it.
    """
    watcher = Watcher(sources, alerts)
    view = make_view(watcher.views, console)
    try:
        async with open_plain_nursery() as nursery, AsyncExitStack() as stack:
            nursery.start_soon(watcher.run)
            following = await stack.enter_async_context(open_plain_nursery())
            for follow in followers:
                following.start_soon(follow, watcher, console.print)
            if web is not None:
                view.address = await stack.enter_async_context(web(watcher))
                console.print(f"page: {view.address}")
            await watcher.is_read.wait()
            view.skip_lines()
            while not once:
                async with watcher.hold_still():
                    view.refresh()
                if watcher.is_over and web is None:
                    break
                await watcher.wait_change()
            if once:
                now = time.time()
                async with watcher.hold_still():
                    console.print("\n\n".join(format_view(one, now) for one in watcher.views))
            watcher.is_ended.set()
            await stack.aclose()
            nursery.cancel_scope.cancel()
    finally:
        view.close()
        if save is not None:
            write_page(save, watcher.views)
            console.print(f"page: {save}")
