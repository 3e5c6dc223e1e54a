"""What Prometheus scrapes at /metrics: one table, from which its page and the Grafana dashboard are made too.

Names are those of the original client's instruments where it has one. A figure of a run has the label `run`; one of a
member has `member` and `key` too, so `psyche_training_loss{member=""}` is the run's.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from psyche.analysis.members import MemberView
from psyche.analysis.run_view import RunView
from psyche.analysis.troubles import CAUSES
from psyche.telemetry.status import NodeView
from psyche.watch.rows import Values, compute_perplexity, keep_numbers, make_last_row, name_runs

PREFIX: Final = "psyche_"
COUNTED: Final = "_total"  # the end of a counter's name
Found = float | None


class RunNow(NamedTuple):
    """A run, and the figures of its last round."""

    view: RunView
    last: Values
    troubles: Mapping[str, float]  # how many, by cause


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric of a run, of each member, or of both; `node` reads what only a member's own log tells.

    With `by` the run's value is a mapping by that label. Its unit is the last word of its name, if it has one.
    """

    name: str
    meaning: str
    run: Callable[[RunNow], Any] | None = None
    member: Callable[[MemberView], Found] | None = None
    node: Callable[[NodeView], Found] | None = None
    is_counter: bool = False
    by: str = ""

    @property
    def series(self) -> str:
        return PREFIX + self.name + COUNTED * self.is_counter

    @property
    def labels(self) -> list[str]:
        """The labels that its values have, one text for each kind of value."""
        of_run = [f"run, {self.by}" if self.by else "run"] if self.run else []
        return of_run + (["run, member, key"] if self.member or self.node else [])


def _last(key: str) -> Callable[[RunNow], Found]:
    return lambda now: now.last.get(key)


def _get_train_s(member: MemberView) -> Found:
    last = None if member.curve is None else member.curve.last
    return None if last is None else last.seconds or None


INSTRUMENTS: Final = (
    Instrument("round_step", "Steps on record; where a member is", lambda r: r.view.step, lambda m: m.step),
    Instrument("total_steps", "Steps that the run is to have", lambda r: r.view.total_steps or None),
    Instrument("time_left_seconds", "Time to the last step, at the present pace", lambda r: r.view.left_s),
    Instrument("members", "Healthy members", lambda r: r.view.members),
    Instrument("troubles", "What is wrong, as alerts tell it", lambda r: r.troubles, by="cause"),
    Instrument("training_loss", "Nats per token; of a run the median", _last("train/loss"), lambda m: m.loss),
    Instrument(
        "training_perplexity", "e to the loss", _last("train/perplexity"), lambda m: compute_perplexity(m.loss)
    ),
    Instrument("learning_rate", "Of the last step", lambda r: r.last.get("train/lr", r.view.learning_rate)),
    Instrument("total_tokens", "Tokens trained in the run so far", lambda r: r.view.tokens),
    Instrument(
        "tokens_per_second", "Tokens trained a second", lambda r: r.view.tokens_per_s, lambda m: m.tokens_per_s
    ),
    Instrument("token_batch_size", "Tokens of the last step", _last("train/global_token_batch_size")),
    Instrument("training_efficiency", "Share of the last round in which members trained", _last("train/efficency")),
    Instrument(
        "eval_score", "Share of right answers in a known task, of the newest weights measured",
        lambda r: {task: score.value for task, score in r.view.scores.items()}, by="task",
    ),
    Instrument("round_seconds", "Duration of the last round", _last("seconds")),
    Instrument("results_counted", "Results of the last round that counted", _last("results")),
    Instrument("participating_in_round", "1 for a member of the epoch", member=lambda m: float(m.index is not None)),
    Instrument("rounds_awaited", "Of the last 50 rounds, those that waited for it last", member=lambda m: m.waited),
    Instrument("last_train_time_seconds", "How long it trained in its last round", member=_get_train_s),
    Instrument("rounds_done", "Rounds whose set has its result", member=lambda m: m.rounds_done, is_counter=True),
    Instrument("rounds_missed", "Rounds whose set lacks it", member=lambda m: m.rounds_missed, is_counter=True),
    Instrument("download_bytes", "Received from members", member=lambda m: m.bytes_received, is_counter=True),
    Instrument("upload_bytes", "Sent to members", member=lambda m: m.bytes_sent, is_counter=True),
    Instrument("downloads_finished", "Updates fetched", node=lambda n: n.payloads_received, is_counter=True),
    Instrument("gossip_neighbors", "Members that it is connected to", node=lambda n: n.peers),
    Instrument("broadcasts_seen", "Gossip messages received", node=lambda n: n.gossip_received, is_counter=True),
    Instrument("apply_message_failure", "Gossip messages refused", node=lambda n: n.gossip_refused, is_counter=True),
    Instrument("witnesses_sent", "Witness messages sent", node=lambda n: n.witnesses_sent, is_counter=True),
    Instrument(
        "p2p_model_params_downloaded", "How much of the model came from members, in percent",
        node=lambda n: 100 * n.weights_fetched,
    ),
)  # fmt: skip


def write_metrics(views: Sequence[RunView]) -> str:
    """All runs in Prometheus' text format."""
    now = time.time()
    runs = [(name, view, _describe(view, now)) for name, view in zip(name_runs(views), views, strict=True)]
    lines: list[str] = []
    for one in INSTRUMENTS:
        found = [
            line for name, view, told in runs for labels, value in _read(one, name, view, told)
            for line in _write(one.series, labels, value)
        ]  # fmt: skip
        if found:
            kind = "counter" if one.is_counter else "gauge"
            lines += [f"# HELP {one.series} {one.meaning}.", f"# TYPE {one.series} {kind}", *found]
    return "".join(f"{line}\n" for line in lines)


def _describe(view: RunView, now: float) -> RunNow:
    row, point = make_last_row(view), view.curve.last
    last = {} if row is None or point is None else row.values | {"seconds": point.seconds, "results": point.results}
    return RunNow(view, last, dict.fromkeys(CAUSES, 0) | Counter(one.cause for one in view.get_troubles(now)))


def _read(one: Instrument, run: str, view: RunView, now: RunNow) -> Iterator[tuple[dict[str, str], Found]]:
    """The values of an instrument with their labels."""
    if one.run is not None:
        value = one.run(now)
        by_label = value.items() if one.by else [("", value)]
        yield from (({"run": run} | ({one.by: label} if label else {}), found) for label, found in by_label)
    for member in view.get_members() if one.member or one.node else ():
        labels = {"run": run, "member": member.name, "key": member.key}
        if one.member is not None:
            yield labels, one.member(member)
        elif one.node is not None and member.key in view.nodes:
            yield labels, one.node(view.nodes[member.key])


def _write(series: str, labels: Mapping[str, str], value: Found) -> Iterator[str]:
    named = ",".join(f'{name}="{_escape(text)}"' for name, text in labels.items())
    for number in keep_numbers({series: value}).values():
        yield f"{series}{{{named}}} {float(number)!r}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
