"""Serving a run from the start until a signal."""

import contextlib
import dataclasses
import fcntl
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio

from psyche.analysis.accounts import SERVER
from psyche.analysis.run_view import RunView
from psyche.backends.summary import summarize_run
from psyche.core.state.state import Coordinator
from psyche.durable import open_file
from psyche.server.server import BoundServer, ServerSettings, run_server
from psyche.telemetry import types
from psyche.telemetry.console import Console
from psyche.telemetry.events import Entry, EventLog
from psyche.telemetry.text import format_number
from psyche.watch.app import ConsoleView

LOCK_NAME = "lock"  # what a server holds in its state folder (`server.journal.disk`)


async def serve_until_signal(
    settings: ServerSettings, console: Console | None, on_start: Callable[[], None] = lambda: None,
    open_screen: Callable[[BoundServer], AbstractAsyncContextManager[None]] = lambda _bound: contextlib.nullcontext(),
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM; the journal is on disk when this returns. `on_start`: it can be reached now."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            bound: BoundServer = await nursery.start(run_server, settings)  # pyright: ignore[reportArgumentType]
            on_start()
            for note in bound.notes:
                print(f"warning: {note}", file=sys.stderr)
            if console is not None:
                console.print(describe(settings, bound))
                console.print(describe_access(settings, bound))
            async with open_screen(bound):
                async for _ in signals:
                    break
            nursery.cancel_scope.cancel()


def describe(settings: ServerSettings, bound: BoundServer) -> str:
    run_id, key = settings.run.run_id, bound.key.hex()
    where = f"--server-addr HOST:{bound.port} --server-key {key}"
    return (
        f"run {run_id!r} is served on {bound.host}:{bound.port} by process {os.getpid()}, server key {key}\n"
        f"to take part: psyche client train --run-id {shlex.quote(run_id)} {where}"
    )


def describe_access(settings: ServerSettings, bound: BoundServer) -> str:
    if bound.is_open:
        return "warning: the run is open: anybody may join, even to slow it down"
    way = (
        f"psyche run allow KEY --server-addr 127.0.0.1:{bound.port} --state-dir {shlex.quote(str(settings.state_dir))}"
        "  (the key is what `psyche client show-identity` prints)"
    )
    if bound.allowed:
        return f"{format_number(bound.allowed, 'key')} may join; to add one: {way}"
    return f"nobody may join yet: {way}\nor let everybody join: open = true in a table [access] of the run's file"


class ServerView(ConsoleView):
    """The server's run on its console, from its states and its own events."""

    def __init__(self, console: Console, events: EventLog, *, now: Callable[[], float] = time.time) -> None:
        super().__init__([RunView()], console, now=now)
        self._news = events.subscribe()
        for event in events.read_kind(types.RoundOver):  # of former processes: the whole curve
            self.views[0].take(Entry(event.unix, SERVER, event))

    def attach(self, settings: ServerSettings) -> ServerSettings:
        return dataclasses.replace(settings, on_state=self.take)

    def take(self, state: Coordinator) -> None:
        now = self.now()
        self.views[0].take_status(summarize_run(state, int(now), ""), now)
        self.refresh()

    def refresh(self) -> None:
        for entry in self._news.drain():
            self.views[0].take(entry)
        self.skip_lines()  # they are printed as log lines
        if self.views[0].status is not None:  # before the run is open there is nothing to say
            super().refresh()


@contextlib.contextmanager
def leaving_nothing_unless_started(state_dir: Path, *others: Path) -> Iterator[Callable[[], None]]:
    """Remove the folders that a server which never started has made; gives what to call once it has started.

    Folders that were there before stay, and so does one that another server has taken meanwhile.
    """
    new = [folder for folder in (state_dir, *others) if not folder.exists()]
    parents = [parent for folder in new for parent in folder.absolute().parents if not parent.exists()]
    started = False

    def on_start() -> None:
        nonlocal started
        started = True

    try:
        yield on_start
    finally:
        if not started and not is_held(state_dir):
            for folder in new:
                shutil.rmtree(folder, ignore_errors=True)
            for parent in sorted(set(parents), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):  # something else is in it
                    parent.rmdir()


def is_held(state_dir: Path) -> bool:
    try:
        with open_file(state_dir / LOCK_NAME) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
