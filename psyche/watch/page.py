"""A run in words, for terminals: the lines about it, the table of its members, what is waited for, what is wrong."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from psyche.analysis.run_view import LAST_ROUNDS, MemberView, RunView, Trouble, WaitView
from psyche.telemetry.status import ROUND_PHASES
from psyche.telemetry.text import (
    draw_curve,
    format_bytes,
    format_clock,
    format_count,
    format_loss,
    format_number,
    format_seconds,
    format_table,
)

_MEMBERS: Final = re.compile(r"\bmembers? (\d+(?:, \d+)*)")
COLUMNS: Final = 80
CURVE_COLUMNS: Final = 40
NAME_CHARS: Final = 12
KEY_CHARS: Final = 8
MAX_AWAITED: Final = 3
HEAD: Final = ("member", "key", "record", "phase", "step", "loss", "tok/s", "done", "up", "down", "heard")
SPARE: Final = ("down", "up", "done", "tok/s")  # left out in this order where the terminal is too narrow
WRONG: Final = {
    "still": "stands still", "error": "reports an error", "weights": "holds other weights", "disk": "has a full disk",
}  # fmt: skip


def describe_course(view: RunView, *, curve: bool = True) -> Iterator[str]:
    """How far the run is, and what it has learned, each in a line of at most 80 columns."""
    if view.total_steps:
        left, pace = view.left_s, view.step_s
        time_left = "" if left is None or view.is_at_rest or not left else f", about {format_seconds(left)} left"
        each = "" if pace is None else f" ({format_seconds(pace)} a step)"
        yield f"{100 * view.share_done:.0f} % done{time_left}{each}"
    if view.phase in ROUND_PHASES and view.epoch_rounds:
        until = "" if view.limit is None else f"; it ends at {format_clock(view.limit)} at the latest"
        yield f"round {view.height + 1} of {view.epoch_rounds} in this epoch{until}"
    elif view.limit is not None:
        yield f"{view.phase} ends at {format_clock(view.limit)} at the latest"
    trained = [f"{format_count(view.tokens)} tokens so far"] if view.tokens else []
    if view.learning_rate:
        trained.append(f"learning rate {view.learning_rate:.2e}")
    if trained:
        yield ", ".join(trained)
    losses = [point.loss for point in view.curve if point.loss is not None]
    if curve and len(losses) > 1:
        claimed = ", as witnesses claim" if view.is_claimed else ""
        yield f"loss {format_loss(losses[0])} {draw_curve(losses, CURVE_COLUMNS)} {format_loss(losses[-1])}{claimed}"


def describe_awaited(view: RunView) -> str:
    """`waited for last: ada in 12 of the last 50 rounds`; empty if nobody is known."""
    names = {member.key: member.name for member in view.get_members()}
    often = view.count_waits().most_common(MAX_AWAITED)
    if not often:
        return ""
    of = min(LAST_ROUNDS, max(len(view.rounds), len(view.curve), often[0][1]))
    told = [f"{names.get(key, key[:KEY_CHARS])} in {count}" for key, count in often]
    return f"waited for last: {', '.join(told)} of the last {format_number(of, 'round')}"


def format_members_table(members: Sequence[MemberView], now: float, columns: int = COLUMNS) -> str:
    """A table of the members; in logs, which have no keys, without what only a backend says."""
    rows = [make_row(one, now) for one in members]
    spare = list(SPARE)
    hidden = [] if any(one.state for one in members) else ["record"]
    if all(one.key == one.name for one in members):
        hidden.append("key")
    places = [place for place, name in enumerate(HEAD) if name not in hidden]
    head = [HEAD[place] for place in places]
    table = [[row[place] for place in places] for row in rows]
    return format_table(head, table, left=4 - len(hidden), columns=columns, spare=spare)


def make_row(one: MemberView, now: float) -> tuple[str, ...]:
    """The cells of a member under `HEAD`."""
    index = "-" if one.index is None else str(one.index)
    done = "-" if one.rounds_done is None else f"{one.rounds_done}/{one.rounds_done + (one.rounds_missed or 0)}"
    return (
        f"{index:>3} {one.name[:NAME_CHARS]}".rstrip(), "" if one.key == one.name else one.key[:KEY_CHARS], one.state,
        one.phase or "-",
        "-" if one.heard is None else str(one.step), format_loss(one.loss),
        format_count(one.tokens_per_s) if one.tokens_per_s >= 1 else "-", done,
        "-" if one.bytes_sent is None else format_bytes(one.bytes_sent),
        "-" if one.bytes_received is None else format_bytes(one.bytes_received),
        "-" if one.heard is None else f"{format_seconds(max(0, round(now - one.heard)))} ago",
    )  # fmt: skip


def describe_waits(members: Sequence[MemberView], now: float) -> Iterator[str]:
    """`ada, ben wait for member 2 to finish round 5 until 14:03:07, then report anyway`; who trains is no wait."""
    for wait, names in gather_waits(members).items():
        until = ""
        if wait.until is not None:
            until = f" until {format_clock(wait.until)} ({format_seconds(max(0, round(wait.until - now)))})"
        then = f", then {wait.then}" if wait.then else ""
        yield f"{', '.join(names)} {'waits' if len(names) == 1 else 'wait'} for {wait.what}{until}{then}"


def gather_waits(members: Sequence[MemberView]) -> dict[WaitView, list[str]]:
    """Who waits for what, in the third person and to the second; who trains is no wait."""
    told: dict[WaitView, list[str]] = {}
    numbers = {str(member.index): member.name for member in members if member.index is not None}
    for member in members:
        if member.wait is not None and not is_own_work(member):
            what, until = _name_others(member.wait.what, numbers), member.wait.until
            wait = WaitView(what, None if until is None else float(round(until)), member.wait.then)
            told.setdefault(wait, []).append(member.name)
    return told


def is_own_work(member: MemberView) -> bool:
    """Whether it waits for nothing but its own training."""
    return member.wait is not None and member.wait.what.startswith("this client to train")


def _name_others(text: str, numbers: Mapping[str, str]) -> str:
    """`member 2` by its name, and the client itself in the third person."""
    text = text.replace("this client's", "its own").replace("this client", "itself")

    def name(found: re.Match[str]) -> str:
        listed = found[1].split(", ")
        return ", ".join(numbers[one] for one in listed) if all(one in numbers for one in listed) else found[0]

    return _MEMBERS.sub(name, text)


def describe_troubles(troubles: Sequence[Trouble], now: float) -> Iterator[str]:
    for one in troubles:
        lasts = format_seconds(max(0, round(now - one.since)))
        yield f"! {one.who or 'the run'} {WRONG[one.cause]} for {lasts}: {one.text}"


def wrap(text: str, columns: int = COLUMNS) -> str:
    return textwrap.fill(text, columns, subsequent_indent="  ", break_on_hyphens=False)


def format_view(view: RunView, now: float, columns: int = COLUMNS) -> str:
    """The whole of a run as a page."""
    lasts = f" for {format_seconds(max(0, round(now - view.phase_since)))}" if view.phase_since else ""
    name = f"run {view.run_id!r}" if view.run_id else view.name
    members = view.get_members()
    of = f" of {view.total_steps}" if view.total_steps else ""
    rate = f"{format_number(view.members, 'member')}, {format_count(view.tokens_per_s)} tok/s"
    lines = [
        f"{name}: {view.phase or 'nothing known yet'}{lasts}",
        f"epoch {view.epoch}, step {view.step}{of}, {rate}",
        *describe_course(view),
    ]
    if awaited := describe_awaited(view):
        lines.append(awaited)
    if view.checkpoints:
        lines.append(f"checkpoint of step {view.checkpoint_step}: {', '.join(view.checkpoints)}")
    page = [wrap(line, columns) for line in lines]
    if members:
        page += ["", format_members_table(members, now, columns)]
    page += [wrap(line, columns) for line in describe_waits(members, now)]
    page += [wrap(line, columns) for line in describe_troubles(view.get_troubles(now), now)]
    return "\n".join(page)


def format_line(view: RunView, now: float) -> str:
    """The run in one line, for consoles that keep what was printed."""
    of = f" of {view.total_steps}" if view.total_steps else ""
    left = view.left_s
    parts = [
        f"{view.run_id or view.name}: epoch {view.epoch} round {view.height} step {view.step}{of}, {view.phase}",
        f"loss {format_loss(view.loss)}", f"{format_count(view.tokens_per_s)} tok/s",
        *([] if not left or view.is_at_rest else [f"about {format_seconds(left)} left"]),
        *describe_troubles(view.get_troubles(now), now),
    ]  # fmt: skip
    return " | ".join(parts)
