"""What the page shows of a run, as plain values for JSON: the run, its rounds, one member, when each trained."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from psyche.analysis.explanation import explain_credit
from psyche.analysis.members import MAX_TEXT_BYTES, MemberView
from psyche.analysis.run_view import LineView, RunView
from psyche.analysis.tally import RoundAccount
from psyche.analysis.timeline import build_timeline
from psyche.analysis.troubles import CAUSES
from psyche.telemetry import types
from psyche.telemetry.status import ROUND_PHASES
from psyche.watch.page import gather_waits, is_own_work
from psyche.wire.history import HistoryPoint
from psyche.wire.report import clean_text, escape_text

Values = dict[str, Any]
SPARK_POINTS: Final = 60  # of the small curve in the list of runs
MAX_CURVES: Final = 16  # members whose own curves are drawn; of more, only the whole
LIVE_ROUNDS: Final = 12  # whose bars are drawn while a run goes on
LIVE_MEMBERS: Final = 64


def describe_run(view: RunView, run: str, now: float) -> Values:
    """A run in the list of runs: all but what belongs to single members."""
    members = view.get_members()
    losses = [point.loss for point in view.curve if point.loss is not None]
    return {
        "id": run, "now": now, "name": view.run_id or view.name, "source": view.name, "phase": view.phase,
        "phase_since": view.phase_since, "limit": view.limit, "is_at_rest": view.is_at_rest,
        "is_round": view.phase in ROUND_PHASES, "epoch": view.epoch, "height": view.height,
        "epoch_rounds": view.epoch_rounds, "step": view.step, "total_steps": view.total_steps,
        "share_done": view.share_done, "left_s": view.left_s, "step_s": view.step_s, "members": view.members,
        "tokens": view.tokens, "tokens_per_s": view.tokens_per_s, "learning_rate": view.learning_rate,
        "loss": view.loss, "is_claimed": view.is_claimed, "problem": view.problem, "updated": view.updated,
        "checkpoints": view.checkpoints, "checkpoint_step": view.checkpoint_step,
        "scores": [{"task": task, **describe_score(one)} for task, one in view.scores.items()],
        "text": view.text and describe_text(view.text),
        "spark": losses[:: -(-len(losses) // SPARK_POINTS) or 1],
        "bytes_sent": sum(one.bytes_sent or 0 for one in members),
        "bytes_received": sum(one.bytes_received or 0 for one in members),
        "waits": [wait._asdict() | {"who": names} for wait, names in gather_waits(members).items()],
        "troubles": [one._asdict() | {"words": CAUSES[one.cause]} for one in view.get_troubles(now)],
        "passed": {name: getattr(view.passed, name) for name in view.passed.__slots__},
    }  # fmt: skip


def describe_score(one: types.EvalScore) -> Values:
    names = ("metric", "value", "standard_error", "documents", "step", "percent", "final")
    return {name: getattr(one, name) for name in names}


def describe_text(one: types.EvalText) -> Values:
    """What weights write, as a page shows it: with its line ends, all else escaped."""
    return {"step": one.step, "prompt": escape_text(one.prompt), "text": escape_text(one.text, "\n")}


def describe_whole(view: RunView, run: str, now: float) -> Values:
    """A run with its members."""
    return describe_run(view, run, now) | {"people": [describe_tile(one) for one in view.get_members()]}


def describe_tile(one: MemberView) -> Values:
    found = {name: getattr(one, name) for name in one.__slots__ if name not in ("curve", "wait")}
    return found | {"wait": one.wait and one.wait._asdict(), "trains": is_own_work(one)}


def describe_rounds(view: RunView, after: int = 0) -> Values:
    """The curve behind a step, and the last rounds with their reasons."""
    members = view.get_members()
    curves = [(one.name, one.curve) for one in members if one.curve is not None]
    return {
        "curve": build_columns(view.curve.after(after)),
        "series": [
            {"name": name, "step": [x.step for x in curve.after(after)], "loss": [x.loss for x in curve.after(after)]}
            for name, curve in curves
            if len(curves) <= MAX_CURVES
        ],
        "rounds": [describe_round(one) for one in view.rounds],
    }


def build_columns(points: Sequence[HistoryPoint]) -> Values:
    names = [name for name in HistoryPoint.__struct_fields__ if name != "is_claimed"]
    return {name: [getattr(point, name) for point in points] for name in names}


def describe_round(one: RoundAccount) -> Values:
    return {
        "epoch": one.epoch, "height": one.height, "step": one.step, "start": one.start,
        "seconds": one.seconds if one.end else None, "members": one.healthy, "trained": len(one.trained),
        "counted": len(one.members), "why": clean_text(one.bound.text, MAX_TEXT_BYTES), "verdict": judge_round(one),
    }  # fmt: skip


def judge_round(one: RoundAccount) -> str:
    if one.is_void:
        return "void: nothing is applied"
    if one.is_drain:
        return "no data: what is left is applied"
    return f"{len(one.members)} results applied" if one.is_decided else "not decided yet"


def describe_member(view: RunView, one: MemberView) -> Values:
    """A member, its curve, and what each of the last rounds brought it and why."""
    curve = [] if one.curve is None else [*one.curve]
    account = view.accounts.nodes.get(one.key)
    rounds = [] if account is None else [row for row in view.rounds if row.place in account.present]
    return describe_tile(one) | {
        "curve": {"step": [x.step for x in curve], "loss": [x.loss for x in curve]},
        "rounds": [describe_round(row) | {"credit": explain_credit(row, one.key)} for row in rounds],
    }


def describe_line(line: LineView) -> Values:
    return line._asdict()


def describe_timeline(
    view: RunView, *, live: bool = False, describe_node: Callable[[str], str] = lambda name: name
) -> Values:
    """When each member trained, sent, waited or was away; of a run that goes on, the last rounds."""
    most = (LIVE_ROUNDS, LIVE_MEMBERS) if live else (0, 0)
    found = build_timeline(view.accounts, last=most[0], most=most[1])
    return found | {"names": [clean_text(describe_node(name), MAX_TEXT_BYTES) for name in found["names"]]}


def describe_all(view: RunView, run: str, now: float, describe_node: Callable[[str], str] = str) -> Values:
    """Everything about a run, for a page that asks nobody."""
    return describe_whole(view, run, now) | {
        "history": describe_rounds(view),
        "timeline": describe_timeline(view, describe_node=describe_node),
        "log": [describe_line(line) for line in view.get_lines()],
        "member": {one.key: describe_member(view, one) for one in view.get_members()},
    }
