"""A forecast as text and as plain data."""

from dataclasses import asdict
from typing import Any, Final

from psyche.analysis.accounts import Accounts, NodeAccount, What
from psyche.analysis.summary import COLUMN_NAMES, COLUMNS, compute_shares, format_percent, format_times, get_round_json
from psyche.analysis.tally import sort_nodes
from psyche.config.profile import ClassTable
from psyche.forecast.chain_costs import build_chain_json
from psyche.forecast.play import Forecast
from psyche.forecast.question import Question, estimate_sending_s, estimate_slowest_s
from psyche.forecast.recorder import Carried
from psyche.forecast.settled import compute_whole_run, find_narrow
from psyche.forecast.whole_run import build_whole_json, format_whole_run
from psyche.telemetry.text import format_bytes, format_count, format_number, format_seconds, format_tables

SHOWN: Final = 8  # members named one by one


def format_size(parameters: int) -> str:
    """`1.0 billion`, `919 thousand`."""
    for unit, name in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if parameters >= unit:
            count = parameters / unit
            return f"{count:.0f} {name}" if count >= 100 else f"{count:.1f} {name}"
    return str(parameters)


def format_question(question: Question) -> str:
    population = ", ".join(
        f"{count} {one.name}" for one, count in zip(question.classes, question.counts, strict=True) if count
    )
    work, config = question.workload, question.config
    size = format_size(work.parameters) if work.parameters else "unknown"
    return "\n".join(
        [
            f"{question.run.run_id}: {format_number(question.clients, 'client')} ({population}), seed {question.seed}",
            (
                f"model of {size} parameters, {work.sequence_tokens} tokens per sample: "
                f"payloads of {format_bytes(work.payload_bytes)} (size from {work.source})"
            ),
            (
                f"batch of {config.global_batch_size_start} samples at the start, "
                f"overlap {'on' if config.overlap else 'off'}, "
                f"max_round_train_time {config.max_round_train_time} s"
            ),
            (
                "assumed: every client has the first weights on disk; one that comes back and lacks weights fetches "
                f"{format_bytes(work.weights_bytes) if work.parameters else 'nothing of size'} (float32) from others; "
                "all transfers of a machine share its line"
            ),
            *question.backend.describe(),
        ]
    )


def describe_obstacle(forecast: Forecast) -> str:
    state = forecast.outcome.state
    where = f"{state.run_state.name.lower().replace('_', ' ')}, epoch {state.progress.epoch}"
    seen = f"{forecast.obstacle}; " if forecast.obstacle else ""
    return f"{seen}it ended in state {where}, step {state.progress.step}; {_describe_lack(forecast)}"


def _describe_lack(forecast: Forecast) -> str:
    config = forecast.question.config
    alive = sum(not node.ended_away for node in forecast.accounts.nodes.values())
    if alive < config.init_min_clients:
        needed = format_number(config.init_min_clients, "client")
        return f"an epoch needs {needed}, {alive} {'was' if alive == 1 else 'were'} there"
    rounds = forecast.accounts.data_rounds
    trained = sum(len(one.trained) for one in rounds)
    wanted = sum(one.place in node.present for node in forecast.accounts.nodes.values() for one in rounds)
    limit = f"max_round_train_time is {config.max_round_train_time} s"
    if not wanted:
        return f"no round began; warmup_time is {config.warmup_time} s"
    if 2 * trained < wanted:
        slowest = format_seconds(estimate_slowest_s(forecast.question))
        return f"{trained} of {wanted} results came in time: {limit}, the slowest class trains for {slowest}"
    slowest = format_seconds(estimate_sending_s(forecast.question))
    return (
        f"results came in time, too few members had all payloads: {limit}, "
        f"the slowest line needs {slowest} to send a payload to all others"
    )


def format_forecast(forecast: Forecast) -> str:
    accounts = forecast.accounts
    rounds = accounts.data_rounds
    if not rounds:
        return f"no round was finished in {format_seconds(forecast.outcome.simulated_s)}: {describe_obstacle(forecast)}"
    nothing = ["THE RUN LEARNS NOTHING: 0 tokens per second, no result of any round was applied", ""]
    lines = [
        *(nothing if forecast.came_to_nothing else ()),
        (
            f"{format_number(len(rounds), 'round')} in {format_seconds(accounts.rounds_s)}, "
            f"{format_number(len({one.epoch for one in rounds}), 'epoch')}; "
            f"after {format_seconds(accounts.before_s)} of start-up and Warmup"
        ),
        *_format_members(forecast),
        "",
        *format_times(accounts),
        "",
        *_format_sums(forecast),
        "",
        format_classes(forecast),
        *_format_exits(forecast),
        *_format_whole(forecast),
    ]
    if forecast.stood_still:
        lines += ["", f"THE RUN STOOD STILL: {describe_obstacle(forecast)}"]
    return "\n".join(lines)


def _format_members(forecast: Forecast) -> list[str]:
    clients, members = forecast.question.clients, len(forecast.members)
    if members == clients:
        return []
    late = sum(not node.is_dead for node in forecast.accounts.nodes.values() if not node.present)
    away = clients - members - late
    formed = f"came after the epoch had formed (init_min_clients {forecast.question.config.init_min_clients})"
    why = f"{late} {formed}, {away} had died or never came" if late else "the others had died or never came"
    why = why if away else f"the others {formed}"
    return [f"{members} of {clients} clients are members; {why}"]


def _format_sums(forecast: Forecast) -> list[str]:
    accounts = forecast.accounts
    lost, samples = forecast.lost_samples, forecast.samples
    return [
        f"share in training      {format_percent(accounts.shares[What.TRAIN])} of rounds with data",
        f"tokens per second      {format_count(accounts.tokens_per_s)}",
        f"samples lost           {lost:.0f} of {samples:.0f} ({format_percent(lost / samples if samples else 0.0)})",
        *_format_voids(accounts),
        f"rounds waited for      {_format_bounds(forecast)}",
    ]


def _format_voids(accounts: Accounts) -> list[str]:
    void = [str(one.height) for one in accounts.data_rounds if one.is_void]
    named = ", ".join(void[:SHOWN]) + (f" and {len(void) - SHOWN} more" if len(void) > SHOWN else "")
    return [f"void rounds            {len(void)} (no result of them was applied: height {named})"] if void else []


def _format_bounds(forecast: Forecast) -> str:
    total = len(forecast.accounts.data_rounds)
    parts = [f"{describe_bound(forecast, kind, who)}: {n} of {total}" for (kind, who), n in count_bounds(forecast)]
    return "; ".join(parts[:3]) or "nothing"


def count_bounds(forecast: Forecast) -> list[tuple[tuple[str, str], int]]:
    counts: dict[tuple[str, str], int] = {}
    for (kind, who), number in forecast.accounts.bounds.items():
        classes = sorted({get_class_name(forecast.question, name) for name in who.split(", ") if name})
        key = (kind, " and ".join(name for name in classes if name))
        counts[key] = counts.get(key, 0) + number
    return sorted(counts.items(), key=lambda item: -item[1])


def get_class_name(question: Question, name: str) -> str:
    try:
        return question.get_class(name.split(maxsplit=1)[0]).name
    except (ValueError, IndexError):
        return ""


def describe_bound(forecast: Forecast, kind: str, who: str) -> str:
    limit = forecast.question.config.max_round_train_time
    return {
        "training": f"training of class {who}",
        "transfer": f"payloads of class {who}",
        "patience": f"members that were too slow or away ({who})",
        "limit": f"max_round_train_time, {limit} s ({f'{who} missing' if who else forecast.question.backend.complete})",
    }.get(kind, "messages alone")


def format_classes(forecast: Forecast) -> str:
    head = ("class", *COLUMN_NAMES, "members", "cut off", "tokens", "sent/round", "recv/round", "weights fetched")
    question, rows = forecast.question, []
    rounds = max(1, len(forecast.accounts.data_rounds))
    for one, count in zip(question.classes, question.counts, strict=True):
        names = get_class_names(question, one)
        nodes = [node for node in forecast.members if node.name in names]
        if not nodes:
            none = ["-"] * len(COLUMN_NAMES)
            rows += [[one.name, *none, f"0 of {count}", *["-"] * (len(head) - len(none) - 2)]] if count else []
            continue
        shares, members = compute_shares(nodes), str(count) if len(nodes) == count else f"{len(nodes)} of {count}"
        sent, received = (
            sum(getattr(forecast.carried[node.name], way) for node in nodes) / len(nodes) / rounds
            for way in ("sent", "received")
        )
        rows.append(
            [
                one.name, *(format_percent(shares[w]) for w in COLUMNS), members,
                str(sum(len(node.cut_off) for node in nodes)), format_count(sum(node.tokens for node in nodes)),
                format_bytes(sent), format_bytes(received),
                format_bytes(sum(forecast.carried[name].weights_received for name in names)),
            ]
        )  # fmt: skip
    return format_tables(head, rows)


def get_class_names(question: Question, one: ClassTable) -> list[str]:
    place = question.classes.index(one)
    first = sum(question.counts[:place])
    return [f"client-{number}" for number in range(first, first + question.counts[place])]


def _format_exits(forecast: Forecast) -> list[str]:
    if not forecast.exits:
        return ["", "nobody was dropped"]
    lines = ["", f"{format_number(len(forecast.exits), 'member')} left an epoch before its end:"]
    for one in forecast.exits[:SHOWN]:
        name = f"{one.name} ({get_class_name(forecast.question, one.name)})"
        lines.append(f"  after {format_seconds(one.at_s):<12} {name:<28} {one.why}")
    if len(forecast.exits) > SHOWN:
        lines.append(f"  and {len(forecast.exits) - SHOWN} more")
    return lines


def _format_whole(forecast: Forecast) -> list[str]:
    run = compute_whole_run(forecast)
    if run is None or forecast.stood_still or forecast.came_to_nothing:
        return []
    return ["", *format_whole_run(run, "at the pace of the simulated rounds"), *find_narrow(run, forecast.question)]


def format_defects(forecast: Forecast) -> str:
    outcome = forecast.outcome
    if not forecast.defects:
        return ""
    head = (
        "This is a DEFECT of the program. Please report it, with this command and its run.toml, profile and plan of "
        f"faults (seed {forecast.question.seed}), and with these last events:"
    )
    return "\n".join([head, *outcome.last, *(f"violated {one}" for one in forecast.defects)])


def build_json(forecast: Forecast, with_server: Forecast | None = None) -> dict[str, Any]:
    """All figures as plain data: seconds, bytes, tokens, lamports, shares from 0 to 1.

    `with_server` is the same run with a server, if it was played to see what the chain costs.
    """
    question, accounts = forecast.question, forecast.accounts
    return {
        "run": question.run.run_id, "seed": question.seed, "backend": question.backend.traits.kind,
        "chain": build_chain_json(forecast, with_server), "clients": question.clients,
        "members_of_rounds": len(forecast.members),
        "classes": {one.name: count for one, count in zip(question.classes, question.counts, strict=True)},
        "changes": dict(question.changes), "workload": asdict(question.workload),
        "simulated_s": forecast.outcome.simulated_s, "stood_still": forecast.stood_still,
        "came_to_nothing": forecast.came_to_nothing, "digest": forecast.outcome.digest,
        "tokens_per_s": accounts.tokens_per_s, "tokens": accounts.tokens, "samples": forecast.samples,
        "samples_lost": forecast.lost_samples, "cut_offs": forecast.cut_offs,
        "shares": {what.value: share for what, share in accounts.shares.items()}, "rounds_s": accounts.rounds_s,
        "before_rounds_s": accounts.before_s, "whole_training_share": accounts.whole_training_share,
        "seconds_by_state": dict(accounts.phases),
        "bounds": [{"kind": kind, "class": who, "rounds": n} for (kind, who), n in count_bounds(forecast)],
        "whole_run": build_whole_json(compute_whole_run(forecast)), "exits": [asdict(one) for one in forecast.exits],
        "rounds": [get_round_json(one) for one in accounts.rounds],
        "members": [_get_member(forecast, node) for node in sort_nodes(accounts.nodes.values())],
    }  # fmt: skip


def _get_member(forecast: Forecast, node: NodeAccount) -> dict[str, Any]:
    carried = forecast.carried.get(node.name, Carried())
    return {
        "name": node.name, "class": get_class_name(forecast.question, node.name), "tokens": node.tokens,
        "seconds": {what.value: seconds for what, seconds in node.times.items()},
        "rounds_as_member": len(node.present),
        "cut_off": [list(place) for place in node.cut_off],
        "bytes_sent": carried.sent, "bytes_received": carried.received,
        "weights_sent": carried.weights_sent, "weights_received": carried.weights_received,
    }  # fmt: skip
