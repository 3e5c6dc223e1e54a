"""How much the tests do: the first tier, which every change has to pass, or everything (`bash scripts/test --all`).

This is the one place that decides the amounts. A test marked `whole` is of the second tier alone, unless its file is
named on the command line. What the first tier still sees of planted faults is measured by `scripts/power.py`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

Case = TypeVar("Case")
VARIABLE: Final = "PSYCHE_TEST_TIER"


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """What one tier does."""

    simulated_rounds: int  # of fresh seeds, a few of them on a chain
    event_seeds: int  # of random events, 5,000 each (half in the first tier), in core and in the compiled rules
    examples: int  # that hypothesis draws for a test, unless the test says how many
    world_states: int  # nearest states of each world of the model checker


TIERS: Final = {
    "first": Amounts(simulated_rounds=100, event_seeds=1, examples=25, world_states=300),
    "whole": Amounts(simulated_rounds=9_500, event_seeds=20, examples=100, world_states=1_200),
}
IS_WHOLE: Final = os.environ.get(VARIABLE, "first") == "whole"
AMOUNTS: Final = TIERS["whole" if IS_WHOLE else "first"]


def few(cases: Sequence[Case], most: int = 1) -> Sequence[Case]:
    """The first cases of a costly test in the first tier, all of them in the second."""
    return cases if IS_WHOLE else cases[:most]


def draw(examples: int) -> int:
    """How many examples hypothesis draws for a test that wants this many: a quarter of them in the first tier."""
    return examples if IS_WHOLE else examples // 4
