"""Plans that once failed, and a few fresh seeds: none violates anything."""

from pathlib import Path

import pytest
from kits.tier import few
from sim_kit import play

from psyche.forecast.inputs import load_scenario
from psyche.sim.scenarios.swarm import draw_scenario

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.toml"))
SMALL = [seed for seed in range(400, 440) if draw_scenario(seed).clients <= 4][:6]
# left to the second tier
LONG = {
    "all-disks-are-lost", "evidence-shown-by-a-banned-member", "newcomers-dropped-together",
    "no-room-for-the-certified-weights", "stalled-twice", "the-only-proven-member-lies", "withheld-by-the-only-holder",
}  # fmt: skip


def is_long(path: Path) -> bool:
    return path.stem in LONG


@pytest.mark.parametrize("path", few(sorted(CORPUS, key=is_long)), ids=lambda path: path.stem)
def test_a_plan_that_failed_once_does_not_fail_again(path: Path) -> None:
    play(load_scenario(path))


@pytest.mark.parametrize("seed", few(SMALL))
def test_a_seed_violates_nothing(seed: int) -> None:
    play(draw_scenario(seed))
