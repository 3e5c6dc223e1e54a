"""The conditions of a simulated chain and the troubles of its endpoints, as data."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainConditions:
    """How a chain and its endpoints behave.

    Args:
        slot_s: the length of a slot in seconds.
        skipped: the share of slots without a block.
        clock_lag_s: how far the chain's Clock is behind, at most.
        lag_least_s, lag_most_s: after how many seconds an endpoint shows a block; each client's endpoints have their
            own delay between these two.
        answer_s: how long an endpoint takes to answer, on average; a push comes later by up to twice as much.
        endpoints: the number of endpoints that each client knows, in its order of preference.
        lost: the share of sent transactions that reach no leader.
        late: the share of sent transactions that reach a leader up to `late_s` later than the others.
        cut: the share of pushed accounts that are cut on their way: the client connects again and reads the newest one.
    """

    slot_s: float = 0.4
    skipped: float = 0.05
    clock_lag_s: float = 2.0
    lag_least_s: float = 0.4
    lag_most_s: float = 3.0
    answer_s: float = 0.1
    endpoints: int = 2
    lost: float = 0.0
    late: float = 0.0
    late_s: float = 30.0
    cut: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTrouble:
    """What is wrong with an endpoint while a fault lasts.

    Args:
        is_down: it answers nothing.
        stale_slots: by so many slots it is further behind.
        lag_s: by so many seconds it is slower.
        throttled: the share of requests that it refuses because there are too many (429).
        lost: the share of transactions that it loses.
        late: the share of transactions that it passes on late.
        cut: the share of pushed accounts that never arrive.
        is_forked: it shows accounts of blocks that the chain gave up.
        is_wrong: it shows another account than the chain's, whichever block it is asked for.
    """

    is_down: bool = False
    stale_slots: int = 0
    lag_s: float = 0.0
    throttled: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    is_forked: bool = False
    is_wrong: bool = False


class Troubled(Protocol):
    """An endpoint that can get into trouble."""

    def suffer(self, trouble: EndpointTrouble) -> None: ...

    def recover(self, trouble: EndpointTrouble) -> None: ...
