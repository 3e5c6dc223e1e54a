"""The state of a run as a page of text or as JSON, once or again and again (`psyche run info`)."""

import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import trio

from psyche.analysis.members import name_state
from psyche.analysis.run_view import RunView
from psyche.backends.port import Administration
from psyche.cli.helpers.common import say
from psyche.core.state.state import RunState
from psyche.telemetry.console import Console
from psyche.telemetry.plain import get_plain
from psyche.telemetry.run_line import WriteCommand, write_briefly
from psyche.watch import app
from psyche.watch.page import format_view
from psyche.watch.sources import RunSource
from psyche.wire.backend import MemberInfo, Members, RunStatus
from psyche.wire.nursery import open_plain_nursery

NameKey: TypeAlias = Callable[[bytes], str]  # `Administration.name_key`


def format_run(status: RunStatus, write: WriteCommand = write_briefly) -> str:
    """Lay out a run's status; `write` writes the commands that move it."""
    view = RunView()
    view.take_status(status)
    return format_view(view, status.now_unix, write=write)


def get_plain_run(status: RunStatus, members: Members | None = None, name_key: NameKey = bytes.hex) -> dict[str, Any]:
    """Return a run's status, and its members if they are given, as JSON can hold them."""
    fields = {field: get_plain(getattr(status, field)) for field in status.__struct_fields__}
    fields |= {"run_state": RunState(status.run_state).name.lower()}
    clients = [] if members is None else [_get_plain_member(one, name_key) for one in members.members]
    return fields | ({} if members is None else {"clients": clients})


def _format_json(view: RunView, indent: int | None = None) -> str:
    assert view.status is not None, "it has answered"
    return json.dumps(get_plain_run(view.status, view.info, view.name_key), indent=indent)


async def ask_once(
    backend: Administration, with_members: bool, as_json: bool, write: WriteCommand = write_briefly
) -> str:
    source = RunSource(backend, shows_members=with_members, say=say)
    await source.refresh()
    return _format_json(source.view, 2) if as_json else format_view(source.view, time.time(), write=write)


async def watch_until_signal(
    backend: Administration, with_members: bool, as_json: bool, write: WriteCommand = write_briefly
) -> None:
    """Show the state of a run again and again until it is finished, or until SIGINT or SIGTERM."""
    source = RunSource(backend, shows_members=with_members, say=say)
    make_view = JsonView if as_json else partial(app.ConsoleView, write=write)
    await until_signal(lambda: app.watch([source], Console(sys.stdout), make_view=make_view))


async def until_signal(function: Callable[[], Awaitable[None]]) -> None:
    """Call an async function; SIGINT or SIGTERM cancels it."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_plain_nursery() as nursery:

            async def end() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(end)
            await function()
            nursery.cancel_scope.cancel()


class JsonView(app.ConsoleView):
    """A line of JSON for each answer."""

    def draw(self, now: float) -> None:  # noqa: ARG002
        for view in self.views:
            if view.problem:
                say(view.problem)
            else:
                self.console.print(_format_json(view))

    def close(self) -> None:
        """Leave what is printed."""


def _get_plain_member(one: MemberInfo, name_key: NameKey) -> dict[str, Any]:
    fields = {field: get_plain(getattr(one, field)) for field in one.__struct_fields__ if field != "report"}
    said = one.report
    report = None if said is None else {field: get_plain(getattr(said, field)) for field in said.__struct_fields__}
    state = None if one.state is None else name_state(one.state)
    return fields | {"key": name_key(one.key), "state": state, "report": report}
