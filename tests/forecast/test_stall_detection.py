"""A forecast of a run that comes to nothing ends, and says what was missing."""

from dataclasses import replace

import pytest
from forecast_kit import build_machines, build_question

from psyche.analysis.tally import DIED
from psyche.core.state.state import RunState
from psyche.forecast.play import find_missed, play
from psyche.forecast.question import build_scenario, compute_patience_s_of
from psyche.forecast.recorder import Played
from psyche.forecast.report import format_defects, format_forecast
from psyche.sim.faults import Kill, Partition
from psyche.sim.invariants.checker import Violation
from psyche.telemetry import types

HOUR_S = 3600


@pytest.mark.whole
def test_a_run_whose_members_are_all_gone_for_good_ends_soon_and_says_what_it_lacked() -> None:
    weak = build_machines("laptop", fails_every_h=6.0, back_after_min=30.0)
    question = build_question((build_machines(), 3), (weak, 1), rounds=2, faults=(Kill(who=("all",), at_s=6.0),))
    forecast = play(question)
    assert forecast.stood_still
    assert forecast.outcome.simulated_s < 3 * HOUR_S
    assert "no step was completed for " in forecast.obstacle
    assert "an epoch needs 4 clients, 0 were there" in format_forecast(forecast)


@pytest.mark.whole
def test_who_is_gone_for_good_by_the_plan_is_not_brought_back_by_a_failure_of_its_own() -> None:
    weak = build_machines("laptop", fails_every_h=0.02, back_after_min=0.2)
    plan = (Kill(who=("client-3",), at_s=30.0),)
    question = build_question((build_machines(), 3), (weak, 1), rounds=30, init_min_clients=3, faults=plan)
    forecast = play(question)
    away = forecast.accounts.nodes["client-3"]
    assert away.ended_away
    assert max(one.t for one in away.notices if one.what == DIED) <= 30.0


def test_a_run_that_gives_up_epoch_after_epoch_ends_and_names_the_limit_and_what_was_needed() -> None:
    slow = build_machines(tokens_per_s=16 / 20)
    seen: list[Played] = []
    forecast = play(build_question((slow, 3), rounds=3, max_round_train_time=2), on_progress=seen.append)
    assert forecast.stood_still
    assert forecast.obstacle == "3 epochs in a row came to nothing"
    assert "0 of " in (text := format_forecast(forecast))
    assert "results came in time: max_round_train_time is 2 s, the slowest class trains for 21 s" in text
    assert [one.rounds for one in seen] == sorted(one.rounds for one in seen), "progress never goes back"
    assert seen[-1].given_up > 0
    assert seen[0].simulated_s < 1
    assert len({one.simulated_s for one in seen if one.rounds == 0}) > 10, "time is told while no round closes"


@pytest.mark.whole
def test_a_run_whose_lines_are_too_narrow_names_what_sending_takes() -> None:
    narrow = build_machines(up_mbit_s=0.1)
    forecast = play(build_question((narrow, 3), rounds=3))
    assert forecast.stood_still
    assert "the slowest line needs 7 min " in format_forecast(forecast)


def test_the_time_limit_is_that_of_the_rounds_that_are_played() -> None:
    short = build_scenario(build_question((build_machines(), 2), rounds=2, total_steps=5000))
    assert short.limit_s < 2 * HOUR_S
    late = build_scenario(build_question((build_machines(joins_after_min=120.0), 2), rounds=2))
    assert late.limit_s > short.limit_s + 2 * HOUR_S - 1
    weak = build_machines(fails_every_h=6.0, back_after_min=30.0)
    waiting = build_scenario(build_question((weak, 4), rounds=100, rounds_per_epoch=10))
    assert waiting.limit_s > 10 * 3 * 1800, "each epoch may wait for machines that come back"


@pytest.mark.whole
def test_who_joins_late_and_a_fault_with_an_end_are_waited_for() -> None:
    late = build_machines("late", joins_after_min=60.0)
    faults = (Partition(groups=(("all",), ("server",)), at_s=3615.0, for_s=7200.0),)
    forecast = play(build_question((build_machines(), 1), (late, 1), rounds=3, faults=faults))
    assert not forecast.stood_still
    assert forecast.outcome.violations == []
    assert len(forecast.accounts.data_rounds) >= 3


def test_patience_covers_machines_that_come_back() -> None:
    plain = compute_patience_s_of(build_question((build_machines(), 2)))
    back = compute_patience_s_of(build_question((build_machines(fails_every_h=9.0, back_after_min=30.0), 2)))
    assert back == plain + 3 * 1800


@pytest.mark.parametrize(("happened", "missed"), [((0, 1), 0), ((0,), 1), ((), 2)])
def test_faults_that_never_happened_are_found_one_by_one(happened: tuple[int, ...], missed: int) -> None:
    plan = (Kill(who=("all",), at_s=1.0), Kill(who=("all",), at_s=1.0))
    assert len(find_missed(plan, [plan[number] for number in happened])) == missed


@pytest.mark.whole
def test_a_run_that_finished_did_not_stand_still_however_long_its_clients_serve() -> None:
    forecast = play(build_question((build_machines(), 2), rounds=2, cooldown_time=400))
    assert forecast.outcome.state.run_state is RunState.FINISHED
    assert forecast.outcome.violations == []
    assert not forecast.stood_still
    assert "STOOD STILL" not in format_forecast(forecast)
    late = Violation("I5", "client-0 ends with success", "code 1", "epoch 0")
    wrong = replace(forecast, outcome=replace(forecast.outcome, violations=[late]))
    assert not wrong.stood_still
    assert "client-0 ends with success" in format_defects(wrong), "what is wrong after the end is a defect"


def test_who_still_fetches_weights_when_the_run_is_finished_is_waited_for() -> None:
    slow = build_machines("laptop", down_mbit_s=1.0)  # it never has them all
    plan = (Kill(who=("client-3",), at_s=14.0, for_s=5.0, erase=True),)
    question = build_question((build_machines(), 3), (slow, 1), rounds=3, faults=plan, init_min_clients=3,
                              cooldown_time=100)  # fmt: skip
    forecast = play(question, keep_lines=True)
    assert forecast.outcome.violations == []
    assert not forecast.stood_still
    seen = [type(one.event) for one in forecast.outcome.entries if one.node == "client-3"]
    assert seen.index(types.ModelFetch) < seen.index(types.Serving) < seen.index(types.ClientEnded)
