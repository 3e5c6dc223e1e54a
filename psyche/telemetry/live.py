"""Shows a node's log lines and status line while it runs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol

import trio

from psyche.telemetry.console import Console
from psyche.telemetry.events import EventLog
from psyche.telemetry.printer import EventPrinter
from psyche.telemetry.status import StatusLine

REFRESH_S: Final = 0.25


class Line(Protocol):
    """A status line: that of a client (`StatusLine`), or of a node that draws its own."""

    def refresh(self) -> None: ...
    def close(self) -> None: ...


@asynccontextmanager
async def open_live_view(
    log: EventLog, console: Console, mode: Literal["console", "json", "none"], line: Line | None = None
) -> AsyncIterator[None]:
    """Inside the context, print events as log lines and, with `console`, a status line below them.

    `line` None: a `StatusLine` folded from the log's events.
    """
    if mode == "none":
        yield
        return
    printer = EventPrinter(log.subscribe(), shorten=mode == "console")
    if line is None and mode == "console":
        line = StatusLine(log.subscribe(), log.node, console, now=time.time)

    async def refresh() -> None:
        while True:
            printer.refresh()
            if line is not None:
                line.refresh()
            await trio.sleep(REFRESH_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(refresh)
        try:
            yield
        finally:
            nursery.cancel_scope.cancel()
            printer.refresh()
            if line is not None:
                line.close()
