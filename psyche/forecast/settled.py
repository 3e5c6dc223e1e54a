"""Whether a forecast has reached a steady state, and the whole run from there: the first rounds differ from the rest.

A member that is too slow is cut off for some rounds before it is dropped; afterwards rounds are shorter.
"""

import math
from typing import Final

from psyche.analysis.accounts import RoundAccount, What
from psyche.analysis.tally import NodeAccount, compute_times
from psyche.core.state.state import Config
from psyche.forecast.chain_costs import count_rounds, count_steps
from psyche.forecast.play import Forecast
from psyche.forecast.question import Question, estimate_slowest_s
from psyche.forecast.recorder import ExitCause
from psyche.forecast.whole_run import WholeRun

LAST_SHARE: Final = 0.25  # of the rounds
IN_A_ROW: Final = 2  # last rounds in which a member was cut off, so that it may soon be dropped


def compute_late_speed(forecast: Forecast) -> float:
    """Tokens per second in the second half of the rounds, when slow members have mostly been dropped."""
    rounds = forecast.accounts.data_rounds
    later = rounds[len(rounds) // 2 :]
    if not later:
        return 0.0
    seconds = max(one.end for one in forecast.accounts.rounds) - later[0].start
    return sum(one.tokens for one in later) / seconds if seconds > 0 else 0.0


def describe_transient(forecast: Forecast) -> str:
    rounds = forecast.accounts.data_rounds
    if not rounds or forecast.stood_still:
        return ""
    last = rounds[-math.ceil(LAST_SHARE * len(rounds)) :]
    if any(one.at_s >= last[0].start and one.cause is ExitCause.LATE for one in forecast.exits):
        return "play more rounds: members were still leaving"
    if forecast.question.config.late_limit and _is_anybody_about_to_go(forecast, rounds[-IN_A_ROW:]):
        return "play more rounds: members were cut off to the end, and will be dropped"
    return ""


def _is_anybody_about_to_go(forecast: Forecast, rounds: list[RoundAccount]) -> bool:
    gone = {one.name for one in forecast.exits}
    places = {one.place for one in rounds}
    nodes = forecast.accounts.nodes.values()
    return any(node.name not in gone and places <= set(node.cut_off) for node in nodes)


def compute_whole_run(forecast: Forecast) -> WholeRun | None:
    """The whole run, from the later half of the rounds that were played; None if no round was finished."""
    question, accounts = forecast.question, forecast.accounts
    rounds = accounts.data_rounds
    if not rounds:
        return None
    later = rounds[len(rounds) // 2 :]
    drains_s = math.fsum(one.seconds for one in accounts.rounds if one.is_drain)
    between_s = accounts.phases["warmup"] + accounts.phases["cooldown"] + drains_s
    members = sum(later[-1].place in node.present for node in forecast.members)
    round_s = _average([one.seconds for one in later])
    busy_s = _average([_get_longest_training(forecast.members, one) for one in later])
    train_s = _average([one.shares[What.TRAIN] * one.seconds for one in later])
    growth = _compute_growth(question.config, later, question.workload.sequence_tokens)
    round_s += (growth - 1) * train_s
    in_time_s = question.config.max_round_train_time - estimate_slowest_s(question)
    return WholeRun(
        steps=count_steps(question.config), epochs=round(count_rounds(forecast)[1]), round_s=round_s,
        around_s=between_s / len({one.epoch for one in accounts.rounds})
        + question.config.waiting_for_members_extra_time,
        train_s=growth * train_s, tokens=growth * _average([one.tokens for one in later]),
        sent_bytes=max(0, members - 1) * question.workload.payload_bytes,
        send_s=busy_s + (growth - 1) * train_s if question.config.overlap else max(1.0, in_time_s),
    )  # fmt: skip


def _compute_growth(config: Config, played: list[RoundAccount], sequence_tokens: int) -> float:
    start, end, steps = config.global_batch_size_start, config.global_batch_size_end, count_steps(config)
    growing = min(steps, 2 * config.global_batch_size_warmup_tokens / ((start + end) * sequence_tokens))
    samples = end - (end - start) / 2 * growing / steps
    return samples * sequence_tokens / (_average([one.batch_tokens for one in played]) or samples * sequence_tokens)


def _get_longest_training(members: list[NodeAccount], one: RoundAccount) -> float:
    """Seconds that the slowest member of a round's set trained: for so long nobody waits for payloads."""
    counted = [node for node in members if node.name in (one.members or one.trained)]
    return max((compute_times(node, one)[What.TRAIN] for node in counted), default=0.0) or one.seconds


def _average(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def find_narrow(run: WholeRun, question: Question) -> list[str]:
    return [
        f"  too little has       class {one.name}, {one.up_mbit_s:g} Mbit/s"
        for one, count in zip(question.classes, question.counts, strict=True)
        if count and one.up_mbit_s < run.upload_mbit_s
    ]
