"""What a proposed change is called: better, or a trade-off; and when a forecast is too short to tell."""

from dataclasses import replace
from typing import Any

import pytest
from forecast_kit import build_machines, build_question

from psyche.forecast import suggestions as suggest
from psyche.forecast.play import Forecast, play
from psyche.forecast.recorder import EarlyExit, ExitCause
from psyche.forecast.settled import compute_late_speed, describe_transient
from psyche.forecast.suggestions import ChangeVerdict, Idea, Suggestion, format_suggestions, weigh
from psyche.sim.invariants.checker import Violation


@pytest.fixture(scope="module")
def settling() -> Forecast:
    """Three machines, and one that is cut off for three rounds and then dropped."""
    slow = build_machines("slow", tokens_per_s=16 / 15)
    return play(build_question((build_machines(), 3), (slow, 1), rounds=6, max_round_train_time=5, straggler_percent=0))


class Changed:
    def __init__(self, forecast: Forecast, factor: float, lost: float) -> None:
        self._accounts = forecast.accounts
        rounds = [replace(one, start=one.start / factor, end=one.end / factor) for one in forecast.accounts.data_rounds]
        self.rounds = self.data_rounds = rounds
        self.lost_tokens = lost * forecast.accounts.lost_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accounts, name)


def change(forecast: Forecast, factor: float, lost: float) -> Forecast:
    accounts: Any = Changed(forecast, factor, lost)
    return replace(forecast, accounts=accounts)


@pytest.mark.parametrize(
    ("factor", "lost", "verdict"),
    [
        (1.10, 1.0, ChangeVerdict.BETTER),
        (1.00, 0.0, ChangeVerdict.BETTER),
        (0.98, 0.0, ChangeVerdict.BETTER),
        (0.93, 0.0, ChangeVerdict.TRADE_OFF),
        (0.93, 0.9, None),
        (0.80, 0.0, None),
        (1.10, 3.0, None),
    ],
)
def test_better_is_only_what_costs_no_tokens_a_second(
    factor: float, lost: float, verdict: ChangeVerdict | None, settling: Forecast
) -> None:
    base, after = change(settling, 1.0, 1.0), change(settling, factor, lost)
    assert weigh(base, after) is verdict
    stuck = replace(after.outcome, violations=[Violation("I5", "a step", "none", "epoch 0")])
    assert weigh(base, replace(after, outcome=stuck)) is None, "a run that stands still never helps"


def test_a_trade_off_is_called_one_with_both_figures_and_stands_last(settling: Forecast) -> None:
    base, idea = change(settling, 1.0, 1.0), Idea("limit = 2", settling.question)
    answers = iter(change(settling, *one) for one in ((0.93, 0.0), (0.5, 1.0), (1.1, 1.0), (1.2, 1.0)))
    ideas = [replace(idea, text=text) for text in ("limit = 2", "batch = 1", "batch = 2", "batch = 3")]
    found = suggest.check_ideas(base, ideas, answer=lambda _: next(answers))
    assert [one.verdict for one in found] == [*[ChangeVerdict.BETTER] * 2, ChangeVerdict.TRADE_OFF]
    lines = format_suggestions(4, found, "").splitlines()
    assert lines[0] == "4 changes tried; these were better:"
    assert lines[1].startswith("  batch = 3: tokens/s "), "the best comes first"
    del lines[2]
    assert lines[2] == "trade-offs: fewer samples are lost, but tokens come more slowly:"
    assert lines[3].startswith("  limit = 2: tokens/s ")
    assert "samples lost " in lines[3]
    only = format_suggestions(1, [Suggestion(idea, base, base, ChangeVerdict.TRADE_OFF)], "play more rounds")
    assert only.startswith("1 change tried; none was better\ntrade-offs")
    assert only.endswith("these figures may change; play more rounds")


def test_speed_is_that_of_the_rounds_after_slow_members_were_dropped(settling: Forecast) -> None:
    rounds = settling.accounts.data_rounds
    assert rounds[0].seconds > 1.5 * rounds[-1].seconds
    assert compute_late_speed(settling) > 1.2 * settling.accounts.tokens_per_s


def test_members_that_leave_in_the_last_quarter_or_are_about_to_are_a_transient(settling: Forecast) -> None:
    rounds = settling.accounts.data_rounds
    early, late = rounds[1].end, rounds[-1].start + 0.1
    settled = replace(settling, exits=[EarlyExit(early, "client-3", ExitCause.LATE, "was late in 3 rounds")])
    assert describe_transient(settled) == ""
    leaving = replace(settling, exits=[EarlyExit(late, "client-3", ExitCause.LATE, "was late in 3 rounds")])
    assert describe_transient(leaving) == "play more rounds: members were still leaving"
    failing = replace(settling, exits=[EarlyExit(late, "client-3", ExitCause.SILENT, "was silent for 3 rounds")])
    assert describe_transient(failing) == "", "machines fail in every round, that does not settle"
    short = play(replace(settling.question, rounds=2))
    assert describe_transient(short) == "play more rounds: members were cut off to the end, and will be dropped"


@pytest.mark.whole
def test_a_limit_that_cuts_nobody_off_is_proposed_because_it_was_played(uneven: Forecast) -> None:
    idea = next(idea for idea in suggest.find_ideas(uneven) if idea.text.startswith("max_round_train_time"))
    assert idea.question.config.max_round_train_time >= 15
    after = play(idea.question)
    assert (after.cut_offs, after.lost_samples) == (0, 0)
    text = suggest.Suggestion(idea, uneven, after, suggest.ChangeVerdict.BETTER).text
    assert text.startswith("max_round_train_time = ")
    assert "instead of 5" in text
    assert "samples lost 25.0 % -> 0.0 %" in text


def test_each_idea_has_its_reason(even: Forecast, uneven: Forecast) -> None:
    found = {idea.text.partition(" ")[0] for idea in suggest.find_ideas(uneven)}
    assert "max_round_train_time" in found
    assert "without" not in found, "three clients would form no epoch"
    fewer = replace(
        uneven, question=replace(uneven.question, changes={**uneven.question.changes, "init_min_clients": 3})
    )
    assert any(idea.text == "without the 1 of class slow" for idea in suggest.find_ideas(fewer))
    plain = replace(even, question=replace(even.question, changes={**even.question.changes, "overlap": False}))
    assert any(idea.text == "overlap = true" for idea in suggest.find_ideas(plain))
    assert not any(idea.text == "overlap = true" for idea in suggest.find_ideas(even))
    assert not any(idea.text.startswith("max_round") for idea in suggest.find_ideas(even)), "nobody was cut off"
