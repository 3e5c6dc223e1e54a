"""The table of a run's clients: what the record knows of each, and what each says of itself (K8)."""

import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from psyche.core.state.state import ClientState
from psyche.telemetry.plain import get_plain
from psyche.telemetry.text import format_count, format_seconds, format_table
from psyche.wire.backend import MemberInfo, Members
from psyche.wire.report import SelfReport

COLUMNS: Final = 80
NAME_CHARS: Final = 12
KEY_CHARS: Final = 8
LATE_S: Final = 60  # a client reports at least every 30 s
HEAD: Final = ("member", "key", "record", "phase", "step", "loss", "tok/s", "heard")
NOTHING: Final = SelfReport()
NameKey: TypeAlias = Callable[[bytes], str]  # `Backend.name_key`


def format_members_table(members: Members, name_key: NameKey) -> str:
    if not members.members:
        return "no client is here"
    rows = [_make_row(one, name_key) for one in members.members]
    table = format_table(HEAD, rows, left=4, columns=COLUMNS, spare=("tok/s",))
    return "\n".join([table, *_list_waits(members, name_key), *_list_errors(members, name_key)])


def get_plain_members(members: Members, name_key: NameKey) -> list[dict[str, Any]]:
    return [_get_plain_member(one, name_key) for one in members.members]


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
        yield _wrap(f"{', '.join(names)} {'waits' if len(names) == 1 else 'wait'} for {what}")


def _list_errors(members: Members, name_key: NameKey) -> Iterator[str]:
    for one in members.members:
        if one.report is None or not one.has_error:
            continue
        said = f"{_get_name(one, name_key)} reports an error since {format_seconds(one.error_age_s)}"
        if one.report_age_s >= LATE_S:
            said += f", last heard {format_seconds(one.report_age_s)} ago"
        yield _wrap(f"{said}: {one.report.error or 'only the owner may read it'}")


def _wrap(text: str) -> str:
    return textwrap.fill(text, COLUMNS, subsequent_indent="  ")


def _get_plain_member(one: MemberInfo, name_key: NameKey) -> dict[str, Any]:
    fields = {field: get_plain(getattr(one, field)) for field in one.__struct_fields__ if field != "report"}
    said = one.report
    report = None if said is None else {field: get_plain(getattr(said, field)) for field in said.__struct_fields__}
    state = None if one.state is None else _name_state(one.state)
    return fields | {"key": name_key(one.key), "state": state, "report": report}
