"""Who left an epoch before its end: at which time, and what befell it."""

import pytest
from forecast_kit import build_machines, build_question

from psyche.forecast.play import Forecast, play
from psyche.sim.faults import CleanExit, Fault, Kill, Partition
from psyche.telemetry import types

CUT = Partition(groups=(("client-1",), ("server",)), at_s=15.0, for_s=25.0)
AWAY = Kill(who=("client-1",), at_s=15.0, for_s=40.0)


def play_with(fault: Fault, tokens_per_s: float) -> Forecast:
    machines = build_machines(tokens_per_s=tokens_per_s)
    return play(build_question((machines, 4), rounds=8, init_min_clients=3, faults=(fault,)), keep_lines=True)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("fault", "why", "at_s"),
    [
        (AWAY, "its process had died", 30),
        (CUT, "was cut off from the server for 15 s", 30),
        (CleanExit(who=("client-1",), at_s=15.0), "left the epoch", 15),
    ],
)
def test_the_reason_of_an_exit_says_what_befell_its_member(fault: Fault, why: str, at_s: float) -> None:
    forecast = play_with(fault, tokens_per_s=1.0)
    assert [(one.name, one.why) for one in forecast.exits][:1] == [("client-1", why)]
    assert forecast.exits[0].at_s == pytest.approx(at_s, abs=1.5)


def test_who_is_put_out_for_silence_because_it_died_is_told_so() -> None:
    assert [one.why for one in play_with(AWAY, tokens_per_s=8.0).exits] == [
        "was silent for 2 rounds: its process had died"
    ]


def test_an_exit_is_at_the_time_at_which_the_record_has_it() -> None:
    slow = build_machines("slow", tokens_per_s=16 / 15)
    forecast = play(
        build_question((build_machines(), 3), (slow, 1), max_round_train_time=5, straggler_percent=0), keep_lines=True
    )
    told = next(one for one in forecast.outcome.entries if isinstance(one.event, types.Dropped))
    assert (told.node, forecast.exits[0].at_s) == ("client-3", pytest.approx(told.t, abs=0.1))
