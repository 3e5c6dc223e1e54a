"""Whether a forecast has reached a steady state: a run's first rounds differ from the rest.

A member that is too slow is cut off for some rounds before it is dropped; afterwards rounds are shorter.
"""

import math
from typing import Final

from psyche.analysis.accounts import RoundAccount
from psyche.forecast.play import Forecast
from psyche.forecast.recorder import ExitCause

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
    """Why more rounds would change the figures; empty if nothing suggests that."""
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
