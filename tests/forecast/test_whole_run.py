"""The whole run that a forecast of a few rounds tells of, against one that is played to its end."""

from dataclasses import replace

import pytest
from forecast_kit import build_machines, build_question
from kits.tier import few

from psyche.forecast.play import Forecast, play
from psyche.forecast.report import build_json, format_forecast
from psyche.forecast.settled import compute_whole_run
from psyche.forecast.whole_run import WholeRun, format_whole_run

LENGTH = {"total_steps": 41, "rounds_per_epoch": 10, "cooldown_time": 20}
GROWING = {"global_batch_size_start": 3, "global_batch_size_end": 9, "global_batch_size_warmup_tokens": 16 * 120}


def compute(forecast: Forecast) -> WholeRun:
    found = compute_whole_run(forecast)
    assert found is not None
    return found


@pytest.mark.whole
@pytest.mark.parametrize("batch", few([GROWING, {}]), ids=few(["growing", "even"]))
def test_the_time_training_and_traffic_of_a_whole_run_are_told_from_a_few_rounds(batch: dict[str, int]) -> None:
    few = compute(play(build_question((build_machines(), 3), rounds=6, **LENGTH, **batch)))
    forecast = play(build_question((build_machines(), 3), rounds=40, **LENGTH, **batch))
    accounts = forecast.accounts
    assert (few.steps, few.epochs) == (40, 4)
    run_s = sum(seconds for name, seconds in accounts.phases.items() if name not in ("starting", "finished"))
    assert few.seconds == pytest.approx(run_s, rel=0.1)
    assert few.training_share == pytest.approx(accounts.whole_training_share, rel=0.1)
    assert few.tokens * few.steps == pytest.approx(accounts.tokens, rel=0.1)
    sent = sum(one.sent for one in forecast.carried.values()) / 3
    assert few.sent_bytes * few.steps == pytest.approx(sent, rel=0.1)


def test_the_upload_that_a_member_needs_is_what_makes_nobody_wait() -> None:
    need = compute(play(build_question((build_machines(), 3), rounds=4))).upload_mbit_s
    half = play(build_question((build_machines(), 2), (build_machines("slow line", up_mbit_s=need / 2), 1), rounds=4))
    assert compute(half).upload_mbit_s == pytest.approx(need, rel=0.1), "waits for the line do not lower the need"
    assert f"class slow line, {need / 2:g} Mbit/s" in format_forecast(half)
    waits = [one.bound.kind for one in half.accounts.data_rounds]
    enough = play(build_question((build_machines(up_mbit_s=1.2 * need), 3), rounds=4))
    assert "transfer" in waits
    assert "too little has" not in format_forecast(enough)
    assert [one.bound.kind for one in enough.accounts.data_rounds] == ["training"] * 4


def test_a_forecast_says_days_and_bytes_a_day_and_whole_epochs() -> None:
    forecast = play(build_question((build_machines(), 2), rounds=2, total_steps=200_001, rounds_per_epoch=50))
    text = format_forecast(forecast)
    run = compute(forecast)
    assert "the whole run, 200,000 steps in 4000 epochs, at the pace of the simulated rounds:" in text
    assert "it takes             2 days " in text
    assert " GB a day, " in text
    assert "Warmup, drains and Cooldown" not in text, "their share in a few rounds is not that of the run"
    assert build_json(forecast)["whole_run"]["seconds"] == run.seconds
    assert "a day" not in "\n".join(format_whole_run(replace(run, steps=10, epochs=1), "in a test"))
