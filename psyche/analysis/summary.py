"""Time accounts of a run's rounds, as text and as plain data."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from psyche.analysis.accounts import Accounts
from psyche.analysis.tally import Bound, NodeAccount, RoundAccount, What, sort_nodes
from psyche.core.state.enums import RunState
from psyche.telemetry.status import PHASES
from psyche.telemetry.text import format_bytes, format_count, format_number, format_seconds, format_tables

COLUMNS: Final = (What.TRAIN, What.VAIN, What.APPLY, What.TRANSFER, What.WITNESS, What.SEND, What.WAIT, What.AWAY)
COLUMN_NAMES: Final = ("training", "in vain", "applying", "payloads", "witnesses", "sending", "others", "away")
assert set(COLUMNS) == set(What), "a row adds up to the whole"
NAMES: Final = {
    What.TRAIN: "training", What.VAIN: "training in vain", What.TRANSFER: "waiting for payloads",
    What.WITNESS: "waiting for witnesses", What.SEND: "sending its payload",
    What.WAIT: "waiting for others", What.APPLY: "applying results", What.AWAY: "away",
}  # fmt: skip
BETWEEN: Final = (RunState.WAITING_FOR_MEMBERS, RunState.WARMUP, RunState.COOLDOWN, RunState.PAUSED)


def format_percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_times(accounts: Accounts) -> list[str]:
    times = sorted(one.seconds for one in accounts.data_rounds)
    mean = math.fsum(times) / len(times)
    lines = [
        (
            f"time per round         {format_seconds(median(times))} (median; shortest {format_seconds(times[0])}, "
            f"longest {format_seconds(times[-1])})"
        ),
        f"on average             {format_seconds(mean)}, of which",
    ]
    for what, name in NAMES.items():
        share = accounts.shares[what]
        lines.append(f"  {name:<21}{format_seconds(share * mean):>8}  {format_percent(share):>7}")
    return lines


def format_between(accounts: Accounts) -> list[str]:
    phases = {PHASES[state]: accounts.phases.get(state.name.lower(), 0.0) for state in BETWEEN}
    shown = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in phases.items() if seconds)
    return [f"outside of rounds      {format_seconds(sum(phases.values()))}: {shown}"] if shown else []


def compute_shares(nodes: Sequence[NodeAccount]) -> dict[What, float]:
    whole = math.fsum(seconds for node in nodes for seconds in node.times.values())
    return {what: math.fsum(node.times[what] for node in nodes) / whole if whole else 0.0 for what in What}


def format_accounts(accounts: Accounts) -> str:
    rounds = accounts.data_rounds
    if not rounds:
        return "no round was finished"
    bounds = accounts.bounds.most_common(3)
    last = "; ".join(f"{Bound(kind, who, 'others').text}: {n} of {len(rounds)}" for (kind, who), n in bounds)
    head = ("node", *COLUMN_NAMES, "cut off", "tokens", "sent", "received")
    rows = [
        [node.name, *(format_percent(compute_shares([node])[what]) for what in COLUMNS), str(len(node.cut_off)),
         format_count(node.tokens), format_bytes(node.bytes_sent), format_bytes(node.bytes_received)]
        for node in sort_nodes(accounts.nodes.values()) if node.present
    ]  # fmt: skip
    small = ["the log says of no real model: tokens and bytes are those of the small one that was played"]
    return "\n".join([
        f"{format_number(len(rounds), 'round')} in {format_seconds(accounts.rounds_s)}",
        *(small if accounts.is_stand_in else ()), "", *format_times(accounts), "", *format_between(accounts),
        f"tokens per second      {format_count(accounts.tokens_per_s)}", f"rounds waited for      {last}", "",
        format_tables(head, rows),
    ])  # fmt: skip


def build_accounts_json(accounts: Accounts) -> dict[str, Any]:
    """The figures of a run's log as plain data; `stand_in`: its tokens and bytes are of no real model."""
    return {
        "stand_in": accounts.is_stand_in, "tokens_per_s": accounts.tokens_per_s, "tokens": accounts.tokens,
        "shares": {what.value: share for what, share in accounts.shares.items()}, "rounds_s": accounts.rounds_s,
        "before_rounds_s": accounts.before_s, "whole_training_share": accounts.whole_training_share,
        "seconds_by_state": dict(accounts.phases), "rounds": [get_round_json(one) for one in accounts.rounds],
    }  # fmt: skip


def get_round_json(one: RoundAccount) -> dict[str, Any]:
    return {
        "epoch": one.epoch, "height": one.height, "step": one.step, "start_s": one.start, "seconds": one.seconds,
        "drain": one.is_drain, "decided": one.is_decided, "void": one.is_void,
        "members": list(one.members), "tokens": one.tokens,
        "lost_tokens": one.lost_tokens, "waited_for": one.bound.text,
        "shares": {what.value: share for what, share in one.shares.items()},
    }  # fmt: skip
