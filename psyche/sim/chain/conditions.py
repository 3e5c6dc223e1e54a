"""The conditions of a simulated chain, as data."""

from dataclasses import dataclass


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
