"""`psyche run explain`: why the results of a member counted or did not; `psyche run preview-lr`."""

from pathlib import Path

import pytest
from kits.runs import Run
from typer.testing import CliRunner

from psyche.analysis.explanation import explain_member, find_member
from psyche.cli.app import app
from psyche.core.state.state import ClientState
from psyche.errors import ConfigError
from psyche.testing.builders import build_config, build_state

DEMO = Path(__file__).parents[2] / "config" / "demo"
KEYS = ["abc1", "abc2", "def0"]


def build_run() -> Run:
    config = build_config(init_min_clients=3, min_clients=2, witness_nodes=3, rounds_per_epoch=20, evict_after=3)
    run = Run(build_state(config))
    run.join(0, 1, 2)
    run.warm_up()
    return run


def test_whose_results_are_held_is_told_how_many_held_them_and_that_they_count() -> None:
    run = build_run()
    for _ in range(3):
        run.run_round()
    head, *rounds = explain_member(run.state, 1)
    assert head == "member 1 of the running epoch: healthy, 2 results counted"
    assert "heard by 3 of 3 witnesses; its result of round 1 counts: 3 of them held it, 2 are needed" in rounds[-2]
    assert rounds[-1] == "round 3: it is running; as a witness it sent no report yet"


def test_who_is_silent_is_told_that_nobody_heard_it_and_when_it_is_dropped() -> None:
    run = build_run()
    run.run_round()
    run.silent.add(2)
    for _ in range(2):
        run.run_round()
    lines = list(explain_member(run.state, 2))
    assert "not heard 2 times in a row; at 3 it is dropped" in lines
    closed = lines[-2]
    assert closed.startswith("round 2: heard by 0 of 2 witnesses; its result of round 1 does not count: 0 of them")
    assert "as a witness it sent no report" in closed
    run.run_round()
    assert run.state.clients[2].state is ClientState.DROPPED
    assert "dropped" in next(explain_member(run.state, 2))


@pytest.mark.parametrize(("named", "index"), [("1", 1), ("abc2", 1), ("de", 2)])
def test_a_member_is_named_by_its_index_or_the_start_of_its_key(named: str, index: int) -> None:
    assert find_member(build_run().state, named, KEYS) == index


@pytest.mark.parametrize(
    ("named", "why"), [("abc", "several keys"), ("x", "no member"), ("", "no member"), ("9", "0 to 2")]
)
def test_a_name_that_means_nobody_or_several_is_refused_with_what_would_do(named: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        find_member(build_run().state, named, KEYS)


def test_a_run_without_members_says_so() -> None:
    with pytest.raises(ConfigError, match="no epoch yet"):
        find_member(build_state(build_config()), "0", [])


def test_the_learning_rates_of_a_file_are_drawn_from_its_first_to_its_last_step() -> None:
    done = CliRunner().invoke(app, ["run", "preview-lr", str(DEMO)])
    assert done.exit_code == 0, done.output
    kind, curve, head, *rows = done.output.splitlines()
    assert (kind, head.split()) == ("warmup_stable_decay, steps 1 to 241", ["step", "learning", "rate"])
    assert (len(curve), curve[30]) == (60, "█")
    assert [row.split() for row in (rows[0], rows[-1])] == [["1", "1.000e-04"], ["241", "1.000e-04"]]
