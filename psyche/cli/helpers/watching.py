"""The state of a run as a page of text or as JSON, once or again and again (`psyche run info`)."""

import errno
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import trio

from psyche.analysis.run_view import MemberView, RunView, name_state
from psyche.backends.port import Administration
from psyche.backends.solana.amounts import format_amount
from psyche.cli.helpers.common import say
from psyche.core.state.state import RunState
from psyche.errors import BackendError, WireError
from psyche.telemetry.console import Console
from psyche.telemetry.plain import get_plain
from psyche.telemetry.run_line import WriteCommand, describe_progress, format_members, get_phase, write_briefly
from psyche.telemetry.text import format_clock, format_number, format_seconds
from psyche.watch.page import describe_awaited, describe_course, describe_waits, format_members_table
from psyche.wire.backend import MemberInfo, Members, NotOwner, RequestRefused, RunStatus
from psyche.wire.history import HistoryPoint
from psyche.wire.nursery import open_plain_nursery

EVERY_S: Final = 2.0
COLUMNS: Final = 80
HISTORY_S: Final = 3.0
LATE_S: Final = 60  # a client reports at least every 30 s
NameKey: TypeAlias = Callable[[bytes], str]  # `Administration.name_key`


def format_run(
    status: RunStatus, members: Members | None = None, points: Sequence[HistoryPoint] = (), *,
    write: WriteCommand = write_briefly, name_key: NameKey = bytes.hex,
) -> str:  # fmt: skip
    """Lay out a run's status, with its course and its members if they are given.

    Lines have at most 80 columns, but for names and for commands, which `write` writes. `name_key` writes keys.
    """
    view = RunView()
    view.take_history(points)
    view.take_status(status)
    if members is not None:
        view.take_members(members, name_key)
    lines = [*_describe(status, write), *describe_course(view)]
    if awaited := describe_awaited(view):
        lines.append(_wrap(awaited))
    if members is not None:
        clients, now = view.get_members(), members.now_unix
        lines += ["", format_members_table(clients, now, COLUMNS) if clients else "no client is here"]
        lines += [_wrap(one, may_cut=True) for one in describe_waits(clients, now)]
        lines += _list_errors(clients, now)
    elif status.failing:
        lines.append("to read the errors, name the owner's key: --state-dir or -i FILE")
    return "\n".join(lines)


def _describe(status: RunStatus, write: WriteCommand) -> Iterator[str]:
    since = format_seconds(max(0, status.now_unix - status.state_start_unix))
    lasts = f" for {since}" if status.state_start_unix else ""  # a new run's clock stands at 0
    pausing = ", pauses at the end of this epoch" if status.pending_pause else ""
    round_ = f", round {status.height}" if status.members else ""
    yield f"run {status.run_id!r}: {get_phase(status)}{lasts}{pausing}"
    yield f"epoch {status.epoch}{round_}, step {status.step} of {status.total_steps}"
    needed = f"; {format_number(status.min_clients, 'is', 'are')} needed to go on" if status.members else ""
    connections = "" if status.connections is None else f"; {format_number(status.connections, 'connection')}"
    taking_part = f"{format_members(status, write)}{needed}{connections}"
    yield taking_part if "`" in taking_part else _wrap(taking_part)  # a command stays in one piece
    failing = [format_number(status.failing, "client reports an error", "clients report errors")]
    if said := [*describe_progress(status), *(failing if status.failing else [])]:
        yield ", ".join(said)
    if status.checkpoint_sources:
        yield _wrap(f"checkpoint of step {status.checkpoint_step}: {', '.join(status.checkpoint_sources)}")
    if status.earning_rate or status.slashing_rate:
        pays, loses = (format_amount(rate, status.decimals) for rate in (status.earning_rate, status.slashing_rate))
        yield _wrap(f"each epoch from now on pays {pays} for all its credits; an ejected member loses {loses}")


def _wrap(text: str, *, may_cut: bool = False) -> str:
    """Wrap a line; a place or a command stays in one piece unless it may be cut."""
    return textwrap.fill(text, COLUMNS, subsequent_indent="  ", break_long_words=may_cut, break_on_hyphens=may_cut)


def get_plain_run(status: RunStatus, members: Members | None = None, name_key: NameKey = bytes.hex) -> dict[str, Any]:
    """Return a run's status, and its members if they are given, as JSON can hold them."""
    fields = {field: get_plain(getattr(status, field)) for field in status.__struct_fields__}
    fields |= {"run_state": RunState(status.run_state).name.lower()}
    clients = [] if members is None else [_get_plain_member(one, name_key) for one in members.members]
    return fields | ({} if members is None else {"clients": clients})


async def ask_once(
    backend: Administration, with_members: bool, as_json: bool, write: WriteCommand = write_briefly
) -> str:
    status, members = await _ask(backend, with_members=with_members)
    if as_json:
        return json.dumps(get_plain_run(status, members, backend.name_key), indent=2)
    points = await ask_history(backend)
    return format_run(status, members, points, write=write, name_key=backend.name_key)


async def ask_history(backend: Administration) -> tuple[HistoryPoint, ...]:
    """The run's course if the backend tells it soon: endpoints of a chain may be slow, and older servers have none."""
    with trio.move_on_after(HISTORY_S):
        try:
            return await backend.get_history()
        except (BackendError, WireError):
            pass
    return ()


async def _ask(backend: Administration, *, with_members: bool) -> tuple[RunStatus, Members | None]:
    """Ask for status and members; there are none if the key may not see them."""
    status = await backend.get_status()
    if not with_members:
        return status, None
    try:
        return status, await backend.get_members()
    except NotOwner as error:
        say(f"warning: {error}")
        return status, None


async def watch_until_signal(
    backend: Administration, with_members: bool, as_json: bool, write: WriteCommand = write_briefly
) -> None:
    """Show the state of a run again and again until it is finished, or until SIGINT or SIGTERM."""
    view = WatchView(Console(sys.stdout), as_json=as_json, write=write, name_key=backend.name_key)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            async with open_plain_nursery() as nursery:

                async def end() -> None:
                    async for _ in signals:
                        nursery.cancel_scope.cancel()

                nursery.start_soon(end)
                await watch_run(backend, view, with_members=with_members)
                nursery.cancel_scope.cancel()
        finally:
            view.close()  # an error's message goes below the page


class WatchView:
    """A page that is drawn in place on a terminal; elsewhere each state is printed below the one before."""

    def __init__(
        self,
        console: Console,
        *,
        as_json: bool = False,
        write: WriteCommand = write_briefly,
        name_key: NameKey = bytes.hex,
    ) -> None:
        self._console = console
        self._as_json = as_json
        self._write, self._name_key = write, name_key
        self._page: list[str] = []

    def show(self, status: RunStatus, members: Members | None, points: Sequence[HistoryPoint] = ()) -> None:
        if self._as_json:
            self._console.print(json.dumps(get_plain_run(status, members, self._name_key)))
        else:
            page = format_run(status, members, points, write=self._write, name_key=self._name_key)
            self._page = page.splitlines()
            self._draw(f"at {format_clock(status.now_unix)}; Ctrl-C ends this")
        if self._console.is_broken:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def show_problem(self, problem: str) -> None:
        if self._as_json:
            say(problem)
        else:
            self._draw(f"{problem}; trying again, Ctrl-C ends this")

    def _draw(self, last: str) -> None:
        if not self._console.live:
            self._console.print("\n".join([*self._page, last, ""]))
            return
        rows = max(1, shutil.get_terminal_size().lines - 3)
        cut = len(self._page) - rows
        page = self._page if cut <= 0 else [*self._page[:rows], f"... {cut} more lines do not fit on this terminal"]
        self._console.set_status("\n".join([*page, last]))

    def close(self) -> None:
        self._console.clear_status()
        if self._console.live and self._page:
            self._console.print("\n".join(self._page))


async def watch_run(backend: Administration, view: WatchView, *, with_members: bool) -> None:
    """Show the state of a run every two seconds until it is finished."""
    from psyche.wire.line.handshake import HandshakeError

    has_answered, step = False, -1
    points: tuple[HistoryPoint, ...] = ()
    while True:
        try:
            status, members = await _ask(backend, with_members=with_members)
            with_members = members is not None  # a key that may not see them is told so once
        except (HandshakeError, RequestRefused):
            raise  # it was heard and refused: the same question gets the same answer
        except BackendError as error:
            if not has_answered:
                raise
            view.show_problem(str(error))
        else:
            has_answered = True
            if status.step != step:
                step, points = status.step, await ask_history(backend)
            view.show(status, members, points)
            if status.run_state == RunState.FINISHED:
                return
        await trio.sleep(EVERY_S)


def _list_errors(members: Sequence[MemberView], now: float) -> Iterator[str]:
    for one in members:
        if not one.error:
            continue
        said = f"{one.name} reports an error since {format_seconds(max(0, now - one.error_since))}"
        if one.heard is not None and now - one.heard >= LATE_S:
            said += f", last heard {format_seconds(now - one.heard)} ago"
        yield _wrap(f"{said}: {one.error}", may_cut=True)


def _get_plain_member(one: MemberInfo, name_key: NameKey) -> dict[str, Any]:
    fields = {field: get_plain(getattr(one, field)) for field in one.__struct_fields__ if field != "report"}
    said = one.report
    report = None if said is None else {field: get_plain(getattr(said, field)) for field in said.__struct_fields__}
    state = None if one.state is None else name_state(one.state)
    return fields | {"key": name_key(one.key), "state": state, "report": report}
