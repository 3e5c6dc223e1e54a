"""The picture of a run."""

from pathlib import Path

import pytest
from forecast.forecast_kit import build_machines, build_question
from kits.log import make

from psyche.analysis.accounts import Accounts
from psyche.analysis.timeline import COLORS, NO_MEMBER, check_picture, get_absences, write_picture
from psyche.errors import ConfigError
from psyche.forecast.play import Forecast, play
from psyche.telemetry import types


@pytest.fixture(scope="module")
def few() -> Forecast:
    return play(build_question((build_machines(), 5), rounds=2, init_min_clients=3))


def test_a_picture_that_cannot_be_written_is_refused_beforehand(tmp_path: Path) -> None:
    check_picture(tmp_path / "run.png")
    with pytest.raises(ConfigError, match=r"must end in \.png"):
        check_picture(tmp_path / "run.svg")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_picture(tmp_path / "missing" / "run.png")


def test_the_picture_tells_who_is_no_member_and_who_is_away(few: Forecast) -> None:
    outside = next(node for node in few.accounts.nodes.values() if not node.present)
    assert len(get_absences(few.accounts, outside)) == len(few.accounts.rounds)
    assert get_absences(few.accounts, few.members[0]) == []
    assert len({*COLORS.values(), NO_MEMBER, "#ffffff"}) == len(COLORS) + 2, "each has a colour of its own"


def test_the_picture_names_the_class_of_each_machine_and_ends_with_the_last_round(
    few: Forecast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot as plt

    monkeypatch.setattr(plt, "close", lambda _figure: None)
    write_picture(few.accounts, "a title", tmp_path / "run.png", lambda name: f"{name} of backend")
    assert [file.name for file in tmp_path.iterdir()] == ["run.png"], "it is written whole"
    axes = plt.gcf().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["client-0 of backend", "client-1 of backend"]
    rounds = few.accounts.rounds
    assert axes.get_xlim() == (0.0, rounds[-1].end - rounds[0].start)
    assert few.accounts.ended > rounds[-1].end, "clients serve after the last round"


def test_a_run_without_a_round_is_drawn_with_its_clients(tmp_path: Path) -> None:
    accounts = Accounts()
    accounts.take(5.0, "ada", make(types.LeftEpoch))
    accounts.take(9.0, "ada", make(types.ClientStarted))
    accounts.finish()
    write_picture(accounts, "a title", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
