"""When each client of a run trained, sent, waited or was away, as bars in rows that a page can draw."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from psyche.analysis.accounts import Accounts, NodeAccount, RoundAccount, What
from psyche.analysis.tally import Place, Span, find_spans, sort_nodes

COLUMNS: Final = 4_000  # bars nearer to each other than one of so many parts of the whole become one


def build_timeline(accounts: Accounts, *, last: int = 0, most: int = 0) -> dict[str, Any]:
    """The bars of all clients, in seconds since the first round; `last` rounds and `most` clients, 0: all.

    `rows` has for each name the bars of each kind as start, end, start, end ...; `absent` is while it was no member,
    `cut` while it trained for a set that lacks its result.
    """
    rounds = [one for one in accounts.rounds if one.end or one.closing][-last:]
    nodes = sort_nodes(accounts.nodes.values())
    nodes = nodes[:most] if most else nodes
    origin = rounds[0].start if rounds else accounts.started
    end = max([origin, *(get_end(one) for one in rounds)])
    step_s = (end - origin) / COLUMNS
    return {
        "origin": origin, "end": end - origin, "begun": origin - accounts.started, "names": [one.name for one in nodes],
        "starts": [round(one.start - origin, 2) for one in rounds],
        "rows": [
            {name: flatten(bars, origin, step_s) for name, bars in list_bars(rounds, node).items() if bars}
            for node in nodes
        ],
    }  # fmt: skip


def list_bars(rounds: Sequence[RoundAccount], node: NodeAccount) -> dict[str, list[Span]]:
    found = {what.value: get_bars(rounds, node, what) for what in What}
    cut: set[Place] = set(node.cut_off)
    found["absent"] = [Span(one.start, get_end(one)) for one in rounds if one.place not in node.present]
    found["cut"] = [Span(one.start, get_end(one)) for one in rounds if one.place in cut]
    return found


def get_bars(rounds: Sequence[RoundAccount], node: NodeAccount, what: What) -> list[Span]:
    present = [one for one in rounds if one.place in node.present]
    if not rounds:
        return []
    if what is What.AWAY:  # drawn also while it is no member, and between epochs
        first, last = rounds[0].start, get_end(rounds[-1])
        return [Span(max(span.start, first), min(span.end, last)) for span in find_spans(node.spans[what], first, last)]
    if what is What.WAIT:
        return [Span(one.start, get_end(one)) for one in present]
    if what is What.WITNESS:
        return [Span(one.closing, one.end) for one in present if one.end > one.closing]
    return [clip(span, one) for one in present for span in find_spans(node.spans[what], one.start, get_end(one))]


def get_end(one: RoundAccount) -> float:
    return one.end or one.closing


def clip(span: Span, one: RoundAccount) -> Span:
    return Span(max(span.start, one.start), min(span.end, get_end(one)))


def flatten(bars: Iterable[Span], origin: float, step_s: float) -> list[float]:
    """Bars as numbers; those that no eye would tell apart are one."""
    found: list[float] = []
    for bar in bars:
        start, end = round(bar.start - origin, 3), round(bar.end - origin, 3)
        if found and start - found[-1] <= step_s and math.isfinite(end):
            found[-1] = max(end, found[-1])
        else:
            found += [start, end]
    return found
