"""The state of a run as a page of text or as JSON, once or again and again (`psyche run info`)."""

import errno
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import trio

from psyche.backends.port import Administration
from psyche.backends.solana.amounts import format_amount
from psyche.cli.helpers.common import say
from psyche.core.state.state import ClientState, RunState
from psyche.errors import BackendError
from psyche.telemetry.console import Console
from psyche.telemetry.plain import get_plain
from psyche.telemetry.run_line import describe_progress, format_members, get_phase
from psyche.telemetry.text import format_clock, format_count, format_number, format_seconds, format_table
from psyche.wire.backend import MemberInfo, Members, NotOwner, RequestRefused, RunStatus
from psyche.wire.commands import WriteCommand, write_briefly
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.report import SelfReport

EVERY_S: Final = 2.0
COLUMNS: Final = 80
NAME_CHARS: Final = 12
KEY_CHARS: Final = 8
LATE_S: Final = 60  # a client reports at least every 30 s
HEAD: Final = ("member", "key", "record", "phase", "step", "loss", "tok/s", "heard")
NOTHING: Final = SelfReport()
NameKey: TypeAlias = Callable[[bytes], str]  # `Administration.name_key`


def format_run(
    status: RunStatus, members: Members | None = None, *, write: WriteCommand = write_briefly,
    name_key: NameKey = bytes.hex,
) -> str:  # fmt: skip
    """Lay out a run's status, and its members if they are given.

    Lines have at most 80 columns, but for names and for commands, which `write` writes. `name_key` writes keys.
    """
    lines = [*_describe(status, write)]
    if members is not None:
        lines.append(f"\n{format_members_table(members, name_key)}")
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
    return format_run(status, members, write=write, name_key=backend.name_key)


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

    def show(self, status: RunStatus, members: Members | None) -> None:
        if self._as_json:
            self._console.print(json.dumps(get_plain_run(status, members, self._name_key)))
        else:
            self._page = format_run(status, members, write=self._write, name_key=self._name_key).splitlines()
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

    has_answered = False
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
            view.show(status, members)
            if status.run_state == RunState.FINISHED:
                return
        await trio.sleep(EVERY_S)


def format_members_table(members: Members, name_key: NameKey) -> str:
    if not members.members:
        return "no client is here"
    rows = [_make_row(one, name_key) for one in members.members]
    table = format_table(HEAD, rows, left=4, columns=COLUMNS, spare=("tok/s",))
    return "\n".join([table, *_list_waits(members, name_key), *_list_errors(members, name_key)])


def _get_name(member: MemberInfo, name_key: NameKey) -> str:
    name = member.report.name if member.report is not None else ""
    return name or name_key(member.key)[:KEY_CHARS]


def _make_row(one: MemberInfo, name_key: NameKey) -> tuple[str, ...]:
    said = one.report or NOTHING
    index = "-" if one.index is None else str(one.index)
    return (
        f"{index:>3} {said.name[:NAME_CHARS]}".rstrip(),
        name_key(one.key)[:KEY_CHARS],
        _describe_state(one),
        said.phase or "-",
        "-" if one.report is None else str(said.step),
        "-" if said.loss is None else f"{said.loss:.3f}",
        format_count(said.tokens_per_s) if said.tokens_per_s else "-",
        "-" if one.report is None else f"{format_seconds(one.report_age_s)} ago",
    )


def _describe_state(one: MemberInfo) -> str:
    if one.is_connected is False:
        return "away" if one.state is None else f"{_name_state(one.state)}, away"
    return "waits" if one.state is None else _name_state(one.state)


def _name_state(state: int) -> str:
    return ClientState(state).name.lower() if state in {*ClientState} else str(state)


def _list_waits(members: Members, name_key: NameKey) -> Iterator[str]:
    waits: dict[str, list[str]] = {}
    for one in members.members:
        if one.report is not None and one.report.wait and one.is_connected is not False:
            waits.setdefault(one.report.wait, []).append(_get_name(one, name_key))
    for what, names in waits.items():
        yield _wrap(f"{', '.join(names)} {'waits' if len(names) == 1 else 'wait'} for {what}", may_cut=True)


def _list_errors(members: Members, name_key: NameKey) -> Iterator[str]:
    for one in members.members:
        if one.report is None or not one.has_error:
            continue
        said = f"{_get_name(one, name_key)} reports an error since {format_seconds(one.error_age_s)}"
        if one.report_age_s >= LATE_S:
            said += f", last heard {format_seconds(one.report_age_s)} ago"
        yield _wrap(f"{said}: {one.report.error or 'only the owner may read it'}", may_cut=True)


def _get_plain_member(one: MemberInfo, name_key: NameKey) -> dict[str, Any]:
    fields = {field: get_plain(getattr(one, field)) for field in one.__struct_fields__ if field != "report"}
    said = one.report
    report = None if said is None else {field: get_plain(getattr(said, field)) for field in said.__struct_fields__}
    state = None if one.state is None else _name_state(one.state)
    return fields | {"key": name_key(one.key), "state": state, "report": report}
