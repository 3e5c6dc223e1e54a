"""`psyche run explain`: why the results of a member counted or did not; `psyche run preview-lr`."""

from pathlib import Path

import pytest
from kits.log import make
from kits.runs import Run
from typer.testing import CliRunner
from watch.page_kit import NAMES, Logs

from psyche.analysis.explanation import explain_member, find_member
from psyche.cli.app import app
from psyche.core.state.state import ClientState
from psyche.errors import ConfigError
from psyche.telemetry import types
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


def test_logs_tell_of_every_round_whether_a_clients_result_counted_and_who_was_waited_for(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    for height in range(60):
        logs.play(height, late="ben" if height == 7 else "")
        for node in NAMES:
            logs.emit(node, make(types.Decided, height=height, members=(0, 1) if height != 7 else (0,)))
    logs.play(60)
    named = [explain("--logs", str(tmp_path), who) for who in ("ben", "1")]
    head, *rounds = named[0].splitlines()
    assert (head, len(rounds), named[0]) == ("ben: its result counted in 59 of 61 rounds with data", 61, named[1])
    assert rounds[7].startswith("round 0.7, step 8: no: it did not finish its training for the set of 1")
    assert rounds[8].startswith("round 0.8, step 9: yes: its result is in the set; waited for last: training of ben")
    assert rounds[60].startswith("round 0.60, step 61: not decided yet")
    assert "these logs have no such client, or several; they tell of ada, ben" in explain("--logs", str(tmp_path), "x")


def explain(*words: str) -> str:
    return CliRunner().invoke(app, ["run", "explain", *words]).output
