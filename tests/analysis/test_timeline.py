"""The bars of a run."""

import pytest
from forecast.forecast_kit import build_machines, build_question
from kits.log import make

from psyche.analysis.accounts import Accounts
from psyche.analysis.tally import Span
from psyche.analysis.timeline import build_timeline, flatten
from psyche.forecast.play import Forecast, play
from psyche.telemetry import types


@pytest.fixture(scope="module")
def few() -> Forecast:
    return play(build_question((build_machines(), 5), rounds=2, init_min_clients=3))


@pytest.mark.whole
def test_the_bars_tell_who_is_no_member_and_who_trains(few: Forecast) -> None:
    found = build_timeline(few.accounts)
    rows = dict(zip(found["names"], found["rows"], strict=True))
    outside = next(node for node in few.accounts.nodes.values() if not node.present)
    assert set(rows[outside.name]) == {"absent"}
    member = rows[few.members[0].name]
    assert "absent" not in member
    assert len(member["train"]) == 2 * sum(few.members[0].name in one.trained for one in few.accounts.rounds)


def test_the_bars_end_with_the_last_round_and_name_the_clients_in_order(few: Forecast) -> None:
    found = build_timeline(few.accounts)
    rounds = few.accounts.rounds
    assert found["names"][:2] == ["client-0", "client-1"]
    assert found["end"] == rounds[-1].end - rounds[0].start
    assert few.accounts.ended > rounds[-1].end, "clients serve after the last round"
    assert all(0 <= number <= found["end"] + 1e-3 for row in found["rows"] for bars in row.values() for number in bars)


def test_of_a_run_that_goes_on_only_some_rounds_and_clients_are_drawn(few: Forecast) -> None:
    found = build_timeline(few.accounts, last=1, most=3)
    assert len(found["starts"]) == 1
    assert len(found["rows"]) == 3


def test_a_run_without_a_round_has_its_clients_and_no_bars() -> None:
    accounts = Accounts()
    accounts.take(5.0, "ada", make(types.LeftEpoch))
    accounts.take(9.0, "ada", make(types.ClientStarted))
    accounts.finish()
    found = build_timeline(accounts)
    assert (found["names"], found["rows"], found["end"]) == (["ada"], [{}], 0.0)


def test_bars_that_no_eye_tells_apart_are_one() -> None:
    bars = [Span(10, 11), Span(11.05, 12), Span(13, 14)]
    assert flatten(bars, 10.0, 0.1) == [0, 2, 3, 4]
