"""Runs a node's log lines and status line beside it."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal

import trio

from psyche.telemetry.console import Console
from psyche.telemetry.events import EventLog
from psyche.telemetry.printer import EventPrinter
from psyche.telemetry.status import StatusLine

REFRESH_S: Final = 0.25


@asynccontextmanager
async def open_live_view(
    log: EventLog, console: Console, mode: Literal["console", "json", "none"]
) -> AsyncIterator[None]:
    """While inside: events become log lines, and with `console` a status line stands below them."""
    if mode == "none":
        yield
        return
    printer = EventPrinter(log.subscribe(), shorten=mode == "console")
    line = StatusLine(log.subscribe(), log.node, console, now=time.time) if mode == "console" else None

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
