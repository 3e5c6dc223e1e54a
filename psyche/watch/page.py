"""A run in words, for terminals: the lines about it, the table of its members, what is waited for, what is wrong."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from psyche.analysis.members import MemberView, WaitView
from psyche.analysis.run_view import LAST_ROUNDS, RunView
from psyche.analysis.troubles import CAUSES, Trouble
from psyche.backends.solana.amounts import format_amount
from psyche.telemetry.run_line import WriteCommand, format_members, write_briefly
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
    lay_out,
)
from psyche.wire.backend import RunStatus
from psyche.wire.report import clean_text, escape_text

_MEMBERS: Final = re.compile(r"\bmembers? (\d+(?:, \d+)*)")
COLUMNS: Final = 80
CURVE_COLUMNS: Final = 40
NAME_CHARS: Final = 12
KEY_CHARS: Final = 8
MAX_AWAITED: Final = 3
MAX_TASK_BYTES: Final = 32
MAX_WRITTEN_CHARS: Final = 48  # of a text, on one line
HEAD: Final = ("member", "key", "record", "phase", "step", "loss", "tok/s", "done", "up", "down", "heard")
DONE: Final = HEAD.index("done")
SPARE: Final = ("down", "up", "tok/s", "done")  # left out in this order where the terminal is too narrow


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
    for one in view.scores.values():
        error = "" if one.standard_error is None else f" ± {one.standard_error:.4f}"
        so_far = "" if one.final else f", {one.percent} % of it so far"
        task = clean_text(one.task, MAX_TASK_BYTES)
        yield f"{task} {one.value:.4f}{error} at step {one.step} ({one.documents} documents{so_far})"
    if view.text is not None:
        written = escape_text(f"{view.text.prompt} |{view.text.text}")
        yield f"at step {view.text.step} it writes: {written[:MAX_WRITTEN_CHARS]}"
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
    done = "done" if all(one.credits is None for one in members) else "credits"
    spare = [done if name == "done" else name for name in SPARE]
    hidden = [] if any(one.state for one in members) else ["record"]
    if all(one.key == one.name for one in members):
        hidden.append("key")
    places = [place for place, name in enumerate(HEAD) if name not in hidden]
    head = [done if place == DONE else HEAD[place] for place in places]
    table = [[row[place] for place in places] for row in rows]
    return format_table(head, table, left=4 - len(hidden), columns=columns, spare=spare)


def make_row(one: MemberView, now: float) -> tuple[str, ...]:
    """The cells of a member under `HEAD`."""
    index = "-" if one.index is None else str(one.index)
    done = "-" if one.rounds_done is None else f"{one.rounds_done}/{one.rounds_done + (one.rounds_missed or 0)}"
    return (
        f"{index:>3} {one.name[:NAME_CHARS]}".rstrip(), "" if one.key == one.name else one.key[:KEY_CHARS], one.state,
        one.phase or "-",
        "-" if one.heard is None else f"{one.step} (-{one.lag})" if one.lag else str(one.step), format_loss(one.loss),
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
        yield f"! {one.who or 'the run'} {CAUSES[one.cause]} for {lasts}: {one.text}"


def wrap(text: str, columns: int = COLUMNS) -> str:
    """Wrap a line; a place stays in one piece, and one with a command is left as it is, to be copied."""
    if "`" in text:
        return text
    return textwrap.fill(text, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def format_view(view: RunView, now: float, columns: int = COLUMNS, *, write: WriteCommand = write_briefly) -> str:
    """The whole of a run as a page; `write` writes the commands that move it."""
    members, now = view.get_members(), view.get_time(now)
    lines = [*_describe_state(view, now, write), *describe_course(view), describe_awaited(view)]
    if view.checkpoints:
        lines.append(f"checkpoint of step {view.checkpoint_step}: {', '.join(view.checkpoints)}")
    if view.status is not None:
        lines += _describe_rest(view, view.status)
    lines += view.audits.describe(view.name_member)
    page = [wrap(line, columns) for line in lines if line]
    if members:
        page += ["", format_members_table(members, now, columns)]
    elif view.info is not None:
        page.append("no client is here")
    said = [*describe_waits(members, now), *describe_troubles(view.get_troubles(now), now)]
    page += [textwrap.fill(line, columns, subsequent_indent="  ") for line in said]
    return "\n".join(page)


def _describe_state(view: RunView, now: float, write: WriteCommand) -> Iterator[str]:
    status = view.status
    lasts = f" for {format_seconds(max(0, round(now - view.phase_since)))}" if view.phase_since else ""
    pausing = ", pauses at the end of this epoch" if status is not None and status.pending_pause else ""
    name = f"run {view.run_id!r}" if view.run_id else view.name
    yield f"{name}: {view.phase or 'nothing known yet'}{lasts}{pausing}"
    round_ = f", round {view.height}" if view.phase in ROUND_PHASES else ""
    of = f" of {view.total_steps}" if view.total_steps else ""
    rate = f", {format_count(view.tokens_per_s)} tok/s" if view.tokens_per_s >= 1 else ""
    loss = "" if view.loss is None else f", loss {format_loss(view.loss)}"
    yield f"epoch {view.epoch}{round_}, step {view.step}{of}{loss}{rate}"
    if status is None:
        yield format_number(view.members, "healthy member") if view.members else ""
        return
    needed = f"; {format_number(status.min_clients, 'is', 'are')} needed to go on" if status.members else ""
    connections = "" if status.connections is None else f"; {format_number(status.connections, 'connection')}"
    yield f"{format_members(status, write)}{needed}{connections}"


def _describe_rest(view: RunView, status: RunStatus) -> Iterator[str]:
    if status.failing:
        way = "; to read the errors, name the owner's key: --state-dir or -i FILE" if view.info is None else ""
        yield format_number(status.failing, "client reports an error", "clients report errors") + way
    if status.earning_rate or status.slashing_rate:
        pays, loses = (format_amount(rate, status.decimals) for rate in (status.earning_rate, status.slashing_rate))
        yield f"each epoch from now on pays {pays} for all its credits; an ejected member loses {loses}"


def format_line(view: RunView, now: float, columns: int = 0) -> str:
    """The run in one line, for consoles that keep what was printed; `columns` as in `lay_out`."""
    left, status, own, members = view.left_s, view.status, view.get_time(now), view.get_members()
    of = f" of {view.total_steps}" if view.total_steps else ""
    round_ = f"round {view.height} " if view.phase in ROUND_PHASES else ""
    since_s = round(own - view.phase_since) if view.phase_since else 0
    sent, received = (sum(one or 0 for one in way) for way in (
        [one.bytes_sent for one in members], [one.bytes_received for one in members]
    ))  # fmt: skip
    parts = [
        f"{view.run_id or view.name}: epoch {view.epoch} {round_}step {view.step}{of}",
        f"{view.phase} for {format_seconds(since_s)}" if since_s > 0 else view.phase,
        *([] if view.loss is None else [f"loss {format_loss(view.loss)}"]),
        *([f"{format_count(view.tokens_per_s)} tok/s"] if view.tokens_per_s >= 1 else []),
        *([] if not left or view.is_at_rest else [f"about {format_seconds(left)} left"]),
        *([f"up {format_bytes(sent)} down {format_bytes(received)}"] if sent or received else []),
    ]  # fmt: skip
    waits = [format_number(view.members, "healthy member")] if status is None and view.members else []
    waits += [] if status is None else [format_members(status)]
    waits += ["pauses at the end of this epoch"] if status is not None and status.pending_pause else []
    return lay_out([*filter(None, parts)], [*waits, *describe_troubles(view.get_troubles(now), own)], columns)
