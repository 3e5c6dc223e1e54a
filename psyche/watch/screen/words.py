"""What the screen writes: the top lines, the curve, the tables. All is `Text` or plain: markup of strangers is none."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from rich.text import Text

from psyche.analysis.members import MemberView
from psyche.analysis.run_view import LineView, RunView
from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.status import PHASES
from psyche.telemetry.text import (
    format_bytes,
    format_clock,
    format_count,
    format_loss,
    format_number,
    format_seconds,
    format_table,
    lay_out,
)
from psyche.watch.page import describe_awaited, describe_course, describe_troubles, describe_waits, is_own_work

DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a character in Braille: columns, downwards
LABEL_COLUMNS: Final = 8
SHOWN_TROUBLES: Final = 3
SHOWN_ROUNDS: Final = 20
ROUND_HEAD: Final = ("step", "took", "members", "counted", "loss", "least", "most", "tok/s", "waited for last")
SPARE: Final = ("least", "most", "members", "counted", "tok/s")
REST: Final = {
    PHASES[RunState.FINISHED]: "the run is finished: nobody waits",
    PHASES[RunState.PAUSED]: "the run is paused: all wait for its owner to resume it",
    PHASES[RunState.UNINITIALIZED]: "the run is not started: all wait for its owner to start it",
    "": "nothing is known yet",
}  # fmt: skip


def write_top(view: RunView, members: Sequence[MemberView], now: float, columns: int) -> Text:
    """What is waited for, of whom, until when and what then; below it where the run is, and what is wrong."""
    waits = [*describe_waits(members, now)]
    more = f" (and {format_number(len(waits) - 1, 'other wait')}: Members)" if len(waits) > 1 else ""
    text = Text(waits[0] + more if waits and not view.is_at_rest else _describe_work(view, members), style="bold")
    lasts = f" for {format_seconds(max(0, round(now - view.phase_since)))}" if view.phase_since else ""
    of = f" of {view.total_steps}" if view.total_steps else ""
    parts = [
        f"{view.run_id or view.name}: {view.phase or 'unknown'}{lasts}", f"epoch {view.epoch} step {view.step}{of}",
        format_number(view.members, "member"), f"loss {format_loss(view.loss)}",
        f"{format_count(view.tokens_per_s)} tok/s",
    ]  # fmt: skip
    text.append("\n" + lay_out(parts, (), columns), style="not bold")
    troubles = [*describe_troubles(view.get_troubles(now), now)]
    for line in troubles[:SHOWN_TROUBLES]:
        text.append(f"\n{line}", style="bold red")
    if len(troubles) > SHOWN_TROUBLES:
        text.append(f"\n! and {len(troubles) - SHOWN_TROUBLES} more: Members", style="bold red")
    return text


def _describe_work(view: RunView, members: Sequence[MemberView]) -> str:
    if view.is_at_rest or not view.phase:
        return REST[view.phase]
    until = "" if view.limit is None else f" until {format_clock(view.limit)} at the latest"
    working = [member.name for member in members if is_own_work(member)]
    if not working:
        return f"{view.phase}{until}"
    names = ", ".join(working[:3]) + (f" and {len(working) - 3} more" if len(working) > 3 else "")
    return f"{names} {'trains' if len(working) == 1 else 'train'}{until}, and nobody waits"


def write_run(view: RunView, columns: int, rows: int) -> Text:
    """How far the run is, its curve, and its last rounds, in as many rows as there are."""
    lines = [*describe_course(view, curve=False)]
    if awaited := describe_awaited(view):
        lines.append(awaited)
    if view.checkpoints:
        lines.append(f"checkpoint of step {view.checkpoint_step}: {', '.join(view.checkpoints)}")
    text = Text("\n".join(lines))
    height = max(3, min(16, (rows - len(lines)) // 2))
    points = [(point.step, point.loss) for point in view.curve if point.loss is not None]
    if len(points) > 1:
        claimed = ", as witnesses claim" if view.is_claimed else ""
        text.append(f"\nloss, step {points[0][0]} to {points[-1][0]}{claimed}", style="dim")
        text.append("\n" + draw_line(tuple(loss for _, loss in points), columns, height), style="cyan")
    if table := write_rounds(view, columns):
        text.append(f"\n{table}")
    return text


def write_rounds(view: RunView, columns: int) -> str:
    """The last rounds, the newest first."""
    bounds = {one.step + 1: one.bound.text for one in view.rounds}
    rows = [
        (
            str(one.step), format_seconds(one.seconds), str(one.members), str(one.results), format_loss(one.loss),
            format_loss(one.least), format_loss(one.greatest), format_count(one.tokens_per_s), bounds.get(one.step, ""),
        )
        for one in [*view.curve][: -SHOWN_ROUNDS - 1 : -1]
    ]  # fmt: skip
    return format_table(ROUND_HEAD, rows, left=0, columns=columns, spare=SPARE) if rows else ""


@lru_cache(maxsize=4)  # it is the same until the next round
def draw_line(values: tuple[float, ...], columns: int, rows: int) -> str:
    """A line through the values in dots of Braille; the greatest and the least stand at its left."""
    width, height = max(1, columns - LABEL_COLUMNS) * 2, rows * 4
    least, greatest = min(values), max(values)
    cells = [[0] * (width // 2) for _ in range(rows)]
    before = None
    for x in range(width):
        part = values[x * len(values) // width : max((x + 1) * len(values) // width, x * len(values) // width + 1)]
        mean = sum(part) / len(part)
        y = round((greatest - mean) / (greatest - least) * (height - 1)) if greatest > least else height // 2
        low, high = (y, y) if before is None else (min(y, before), max(y, before))
        for dot in range(low, high + 1):
            cells[dot // 4][x // 2] |= DOTS[x % 2][dot % 4]
        before = y
    labels = {0: format_loss(greatest), rows - 1: format_loss(least)}
    return "\n".join(
        labels.get(number, "").rjust(LABEL_COLUMNS - 1) + " " + "".join(chr(0x2800 + cell) for cell in row)
        for number, row in enumerate(cells)
    )


def write_member(member: MemberView | None, now: float, columns: int) -> Text:
    """All that is known of one member."""
    if member is None:
        return Text("no member is known; over a server, its members are shown to the owner and to clients")
    lines = [
        f"{member.name}  key {member.key}  {member.state or member.phase}, epoch {member.epoch} round {member.height}",
        *describe_waits([member], now),
    ]
    if member.waited:
        lines.append(f"was waited for last in {member.waited} of the last rounds")
    if member.digest:
        lines.append(f"weights {member.digest}")
    text = Text("\n".join(lines))
    if member.error:
        text.append(f"\n! since {format_clock(member.error_since)}: {member.error}", style="bold red")
    losses = () if member.curve is None else tuple(point.loss for point in member.curve)
    if len(losses) > 1:
        text.append("\n" + draw_line(losses, columns, 3), style="cyan")
    return text


def write_traffic(member: MemberView, rates: tuple[float, float]) -> tuple[str, ...]:
    counts = [member.bytes_sent, member.bytes_received]
    return (
        member.name, *("-" if one is None else format_bytes(one) for one in counts),
        *("-" if None in counts else f"{format_bytes(one)}/s" for one in rates),
        "-" if member.wait is None or is_own_work(member) else member.wait.what,
    )  # fmt: skip


def write_line(line: LineView) -> Text:
    style = "red" if line.level >= types.ERROR else "yellow" if line.level >= types.WARNING else ""
    return Text.assemble((f"{format_clock(line.t)} ", "dim"), (f"{line.node:<12} ", "bold"), (line.text, style))
