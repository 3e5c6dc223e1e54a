"""Runs a node's log lines and status line beside it."""

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
    """A status line: of a client (`StatusLine`), or of another node that knows its state by itself."""

    def refresh(self) -> None:
        """Draw what is known now; called a few times a second."""
        ...

    def close(self) -> None:
        """Nothing comes any more."""
        ...


@asynccontextmanager
async def open_live_view(
    log: EventLog, console: Console, mode: Literal["console", "json", "none"], line: Line | None = None
) -> AsyncIterator[None]:
    """While inside: events become log lines, and with `console` a status line stands below them.

    `line` None: the one that is folded from the log's events.
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
