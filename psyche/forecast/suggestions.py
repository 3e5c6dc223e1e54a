"""Suggestions for the owner, each tried out: the same population, seed and faults with one change.

A change is proposed for a reason found in the forecast, and kept only if it helps when played: it is better, or a
trade-off that loses fewer samples at the price of speed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from psyche.analysis.accounts import What
from psyche.analysis.summary import format_percent
from psyche.core.state.state import Config, Optimizer, OptimizerKind
from psyche.forecast.local_steps import describe_local_steps, propose_local_steps
from psyche.forecast.play import Forecast, play
from psyche.forecast.question import Question, estimate_slowest_s
from psyche.forecast.report import count_bounds
from psyche.forecast.settled import compute_late_speed
from psyche.forecast.workload import Workload
from psyche.telemetry.text import format_count, format_number

MAX_TRIED: Final = 6
GAIN: Final = 0.03  # smaller differences are noise
WORTH: Final = 0.15  # loss of speed that a trade-off may cost if it saves most lost samples
HEADROOM: Final = 1.25  # over the slowest training
CONFIRMATIONS: Final = 3  # that round_witness_time has room for on a chain
GOOD_SHARE: Final = 0.97
BATCH_KEYS: Final = ("global_batch_size_start", "global_batch_size_end")
LIMITS: Final[Mapping[str, int]] = {"max_round_train_time": 1 << 32, "global_batch_size_end": 0xFFFF}
Answer = Callable[[Question], Forecast]


@dataclass(frozen=True, slots=True)
class Idea:
    text: str
    question: Question
    caution: str = ""


class ChangeVerdict(StrEnum):
    BETTER = "better"  # more tokens per second, or as many with fewer samples lost
    TRADE_OFF = "trade-off"  # fewer samples lost, but fewer tokens per second


@dataclass(frozen=True, slots=True)
class Suggestion:
    idea: Idea
    before: Forecast
    after: Forecast
    verdict: ChangeVerdict

    @property
    def text(self) -> str:
        before, after = self.before, self.after
        figures = [
            ("tokens/s", *(format_count(compute_late_speed(f)) for f in (before, after))),
            ("in training", *(format_percent(f.accounts.shares[What.TRAIN]) for f in (before, after))),
            ("samples lost", *(format_percent(get_lost_share(f)) for f in (before, after))),
            ("cut off", *(str(f.cut_offs) for f in (before, after))),
        ]
        changed = ", ".join(f"{name} {a} -> {b}" for name, a, b in figures if a != b)
        return f"{self.idea.text}: {changed}" + (f" ({self.idea.caution})" if self.idea.caution else "")


def get_lost_share(forecast: Forecast) -> float:
    return forecast.lost_samples / forecast.samples if forecast.samples else 0.0


def find_ideas(forecast: Forecast, rebuild: Callable[[Optimizer], Workload] | None = None) -> list[Idea]:
    """Find changes worth trying. `rebuild` makes the workload for another optimizer."""
    found = [*_iter_times(forecast), *_iter_settings(forecast), *_iter_population(forecast)]
    if rebuild is not None:
        found = [*_iter_local_steps(forecast, rebuild), *found, *_iter_sizes(forecast, rebuild)]
    return found[:MAX_TRIED]


def _change(question: Question, text: str = "", caution: str = "", **changes: int) -> Idea:
    """Change keys of the run's [config]; the text of a change of one key follows from it."""
    named = ", ".join(f"{key} = {value} instead of {getattr(question.config, key)}" for key, value in changes.items())
    return Idea(text or named, replace(question, changes={**question.changes, **changes}), caution)


def _iter_times(forecast: Forecast) -> Iterator[Idea]:
    """Propose other time limits, if they cut members off or make all wait for a few."""
    question, config = forecast.question, forecast.question.config
    confirmed_s = math.ceil(CONFIRMATIONS * question.backend.confirmation_s)
    if config.round_witness_time < confirmed_s:
        yield _change(question, round_witness_time=confirmed_s)
    wanted_s = math.ceil(HEADROOM * estimate_slowest_s(question))
    if forecast.cut_offs and wanted_s > config.max_round_train_time:
        yield _change(question, max_round_train_time=wanted_s)
    if forecast.cut_offs and config.straggler_percent:
        limit_s = max(wanted_s, config.max_round_train_time)
        text = f"straggler_percent = 0 instead of {config.straggler_percent} (wait for all"
        text += f", for {limit_s} s at most)"
        yield _change(question, text, straggler_percent=0, max_round_train_time=limit_s)
    waits = {kind for (kind, _), _ in count_bounds(forecast)}
    if not config.straggler_percent and waits & {"limit", "patience"}:
        yield _change(question, straggler_percent=Config().straggler_percent)


def _iter_settings(forecast: Forecast) -> Iterator[Idea]:
    question, config = forecast.question, forecast.question.config
    if not config.overlap:
        yield _change(question, "overlap = true", "results count one round later", overlap=True)
    inside = math.fsum(one.seconds for one in forecast.accounts.data_rounds)
    if config.rounds_per_epoch and inside < 0.9 * forecast.outcome.simulated_s and len(get_epochs(forecast)) > 1:
        yield _change(question, caution="latecomers wait longer", rounds_per_epoch=4 * config.rounds_per_epoch)
    doubled = 2 * config.global_batch_size_end
    if forecast.accounts.shares[What.TRAIN] < GOOD_SHARE and doubled <= LIMITS["global_batch_size_end"]:
        yield _idea_of_batch(forecast, doubled)


def _idea_of_batch(forecast: Forecast, size: int) -> Idea:
    question, config = forecast.question, forecast.question.config
    start = 2 * config.global_batch_size_start
    text = f"global_batch_size {size} instead of {config.global_batch_size_end}"
    changes = {"global_batch_size_start": start, "global_batch_size_end": size}
    wanted_s = math.ceil(2 * HEADROOM * estimate_slowest_s(question))
    if wanted_s > config.max_round_train_time:
        changes["max_round_train_time"] = wanted_s
        text += f" and max_round_train_time {wanted_s} instead of {config.max_round_train_time}"
    return _change(question, text, "a larger batch trains differently", **changes)


def get_epochs(forecast: Forecast) -> set[int]:
    return {one.epoch for one in forecast.accounts.data_rounds}


def _iter_population(forecast: Forecast) -> Iterator[Idea]:
    question = forecast.question
    there = [place for place, count in enumerate(question.counts) if count]
    slowest = min(there, key=lambda place: question.classes[place].tokens_per_s)
    left = question.clients - question.counts[slowest]
    if len(there) < 2 or left < max(question.config.init_min_clients, question.clients // 2):
        return
    one = question.classes[slowest]
    counts = tuple(0 if place == slowest else count for place, count in enumerate(question.counts))
    text = f"without the {question.counts[slowest]} of class {one.name}"
    yield Idea(text, replace(question, counts=counts), "the same batch, shared by the others")


def _iter_local_steps(forecast: Forecast, rebuild: Callable[[Optimizer], Workload]) -> Iterator[Idea]:
    """Propose several steps between two exchanges, with the inner batches of before, if training waits for the line."""
    question, config = forecast.question, forecast.question.config
    base = question.run.model.optimizer
    if base.kind is not OptimizerKind.DISTRO or forecast.accounts.shares[What.TRAIN] >= GOOD_SHARE:
        return
    inner_s = estimate_slowest_s(question)
    mbit_s = min(
        min(one.up_mbit_s, one.down_mbit_s)
        for one, count in zip(question.classes, question.counts, strict=True)
        if count
    )
    found = propose_local_steps(question.workload.parameters, question.clients, mbit_s, inner_s, base)
    if found is None or config.global_batch_size_end * found.inner_steps > LIMITS["global_batch_size_end"]:
        return
    changes = {key: getattr(config, key) * found.inner_steps for key in BATCH_KEYS}
    changes["max_round_train_time"] = max(
        config.max_round_train_time, math.ceil(HEADROOM * inner_s * found.inner_steps)
    )
    text = f"{describe_local_steps(found)}, global_batch_size {changes[BATCH_KEYS[1]]} and overlap"
    idea = _change(question, text, "fewer, larger rounds train differently", overlap=True, **changes)
    run = replace(question.run, model=replace(question.run.model, optimizer=found))
    yield replace(idea, question=replace(idea.question, run=run, workload=rebuild(found)))


def _iter_sizes(forecast: Forecast, rebuild: Callable[[Optimizer], Workload]) -> Iterator[Idea]:
    optimizer = forecast.question.run.model.optimizer
    topk = optimizer.compression_topk
    if forecast.accounts.shares[What.TRANSFER] > 1 - GOOD_SHARE and topk > 1:
        workload = rebuild(replace(optimizer, compression_topk=topk // 2))
        question = replace(forecast.question, workload=workload)
        yield Idea(f"compression_topk = {topk // 2} instead of {topk}", question, "each update then carries less")


def check_ideas(before: Forecast, ideas: list[Idea], *, answer: Answer = play) -> list[Suggestion]:
    found: list[Suggestion] = []
    for idea in ideas:
        after = answer(idea.question)
        verdict = weigh(before, after)
        if verdict is not None:
            found.append(Suggestion(idea, before, after, verdict))
    return sorted(found, key=lambda one: (one.verdict is ChangeVerdict.TRADE_OFF, -compute_late_speed(one.after)))


def format_suggestions(tried: int, found: Sequence[Suggestion], transient: str) -> str:
    head = f"{format_number(tried, 'change')} tried"
    better, traded = ([one for one in found if one.verdict is verdict] for verdict in ChangeVerdict)
    lines = [
        f"{head}; these were better:" if better else f"{head}; none was better",
        *(f"  {one.text}" for one in better),
    ]
    if traded:
        lines += [
            "trade-offs: fewer samples are lost, but tokens come more slowly:",
            *(f"  {one.text}" for one in traded),
        ]
    if found:
        lines.append("tokens/s are those of the second half of the rounds")
    return "\n".join([*lines, *([f"these figures may change; {transient}"] if found and transient else ())])


def weigh(before: Forecast, after: Forecast) -> ChangeVerdict | None:
    """Judge a change; None if it does not help. A run that stands still never helps.

    Speeds are those of the later rounds, because a run's first rounds differ from the rest.
    """
    if after.stood_still or after.outcome.violations:
        return None
    speed, new_speed = compute_late_speed(before), compute_late_speed(after)
    lost, new_lost = get_lost_share(before), get_lost_share(after)
    if new_speed > (1 + GAIN) * speed:
        return ChangeVerdict.BETTER if new_lost <= lost + GAIN else None
    if new_lost >= lost / 2:
        return None
    if new_speed >= (1 - GAIN) * speed:
        return ChangeVerdict.BETTER
    return ChangeVerdict.TRADE_OFF if new_speed > (1 - WORTH) * speed else None
