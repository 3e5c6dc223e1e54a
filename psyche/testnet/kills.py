"""Random kills of clients, never so late that a client misses the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from psyche.errors import ConfigError

EPOCHS_LEFT_ALONE: Final = 2  # after the last kill: one to rejoin in, one to finish together
SHARE_LEFT_ALONE: Final = 0.4  # of the steps, if epochs have no length in rounds


@dataclass(frozen=True, slots=True)
class KillPlan:
    """`number` of the `allowed` clients (numbered from 1) every `interval_s` seconds."""

    number: int
    interval_s: float
    allowed: tuple[int, ...]


def make_kill_plan(number: int, interval_s: float, allowed: Sequence[int], num_clients: int) -> KillPlan | None:
    """Check the three settings; return None if no clients are to be killed.

    Raises:
        ConfigError: a setting is invalid; the message names the flag.
    """
    if number == 0:
        return None
    everyone = tuple(range(1, num_clients + 1))
    chosen = tuple(sorted(set(allowed))) or everyone
    if number < 0 or number > len(chosen):
        raise ConfigError(
            f"--random-kill-num {number}: must be between 0 and the {len(chosen)} clients that may be killed"
        )
    if interval_s <= 0:
        raise ConfigError(f"--random-kill-interval {interval_s}: must be above 0 seconds")
    unknown = [client for client in chosen if client not in everyone]
    if unknown:
        raise ConfigError(f"--allowed-to-kill {unknown[0]}: clients are numbered 1 to {num_clients}")
    return KillPlan(number, interval_s, chosen)


def choose_victims(plan: KillPlan, random: Random) -> list[int]:
    """Choose the clients to kill this time."""
    return sorted(random.sample(plan.allowed, plan.number))


def is_time_to_kill(step: int, total_steps: int, rounds_per_epoch: int) -> bool:
    """Whether enough of the run is left: the current epoch and `EPOCHS_LEFT_ALONE` whole ones after it."""
    if rounds_per_epoch > 0:
        return step + (EPOCHS_LEFT_ALONE + 1) * rounds_per_epoch <= total_steps
    return step <= total_steps * (1 - SHARE_LEFT_ALONE)
