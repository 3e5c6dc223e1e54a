"""Two forecasts that many tests look at."""

import pytest
from forecast_kit import build_machines, build_question

from psyche.forecast.play import Forecast, play


@pytest.fixture(scope="session")
def even() -> Forecast:
    """Four machines that are alike: a second of training, then a payload of 2.7 MB to three others at 12.5 MB/s."""
    return play(build_question((build_machines(), 4), rounds=4))


@pytest.fixture(scope="session")
def uneven() -> Forecast:
    """Three machines, and one that takes three times as long as the limit allows."""
    slow = build_machines("slow", tokens_per_s=16 / 15)
    return play(
        build_question((build_machines(), 3), (slow, 1), rounds=4, max_round_train_time=5, straggler_percent=0),
        keep_lines=True,
    )
