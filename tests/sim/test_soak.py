"""What CI plays: fresh seeds in every run, which end, are told of, and fail the run where anything is violated."""

import builtins
import dataclasses
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from kits.scripts import SCRIPTS, load
from scenarios.base import Judgement, Size
from scenarios.named import SCENARIOS

from psyche.sim.invariants.checker import Invariants


def run(script: str, monkeypatch: pytest.MonkeyPatch, *given: str) -> object:
    """The exit code of a script that refuses what it is given."""
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *given])
    with pytest.raises(SystemExit) as ended:
        load(script).main()
    return ended.value.code


@pytest.mark.whole
def test_seeds_are_played_until_there_are_rounds_enough() -> None:
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--from", "400", "--rounds", "20", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "seeds from 400 on"
    assert int(last.split()[0]) >= 20
    assert last.endswith("0 seeds with violations")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--plan", "missing.toml"], "missing.toml: cannot be read: No such file or directory"),
        (["--plan", "."], ".: cannot be read: Is a directory"),
        (["--plan", "bad.toml"], "bad.toml: scenario: Invalid value (at line 1, column 8)"),
        (["--plan", "wrong.toml"], "wrong.toml: Scenario: sead is unknown; known are"),
        (["--seed", "1", "--events", "nowhere/log"], "--events nowhere/log: cannot be written: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_exit_code_2(
    given: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_text("seed = \n")
    (tmp_path / "wrong.toml").write_text("sead = 1\n")
    monkeypatch.chdir(tmp_path)
    assert run("soak", monkeypatch, *given) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == ""
    assert line.startswith(f"soak.py: {message}")


def test_a_scenario_that_does_not_hold_says_why_and_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, size = load("named_scenarios"), Size(clients=3, rounds=3, seed=2)
    replay = "replay: python scripts/named_scenarios.py --names F8 --clients 3 --rounds 3 --seeds 2"
    monkeypatch.setattr(script, "ProcessPoolExecutor", lambda *_args, **_options: nullcontext(builtins))

    def fail(checks: Invariants) -> None:
        checks.fail("I2", "nothing", "some\nthing")

    monkeypatch.setattr(Invariants, "check_end", fail)
    assert not script.play_all([("F8", size)], 1)
    told = capsys.readouterr()
    (table,) = told.out.splitlines()
    assert "violated I2" in table
    first, second, *events, last = told.err.splitlines()
    assert (first[:11], second, len(events) > 50, last) == ("F8 seed 2: ", replay, True, "thing")


@pytest.mark.whole
def test_a_scenario_that_ends_with_an_error_or_misses_its_figure_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, size = load("named_scenarios"), Size(clients=3, rounds=3, seed=2)
    replay = "replay: python scripts/named_scenarios.py --names F8 --clients 3 --rounds 3 --seeds 2"
    monkeypatch.setitem(
        SCENARIOS, "F8", dataclasses.replace(SCENARIOS["F8"], judge=lambda *_: Judgement("nothing", holds=False))
    )
    assert script.play("F8", size).failure.splitlines() == ["F8 does not hold", replay]
    monkeypatch.setitem(SCENARIOS, "F8", dataclasses.replace(SCENARIOS["F8"], judge=lambda *_: {}["x"]))
    played = script.play("F8", size)
    assert (played.holds, played.seen) == (False, "ended with KeyError('x')")
    assert played.failure.splitlines()[1] == replay


def test_a_violation_fails_and_says_how_to_play_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    soak = load("soak")
    counter = soak.Counter(0.0)
    counter.add(soak.Played(7, 12, 1.0, ""))
    counter.add(soak.Played(8, 5, 1.0, "seed 8: 5 rounds\nreplay: python scripts/soak.py --seed 8"))
    assert counter.failures == 1
    assert "--seed 8" in capsys.readouterr().out
    assert counter.describe(3.0) == "17 rounds of 2 seeds in 3 s, 1 seeds with violations"


def test_every_run_of_the_checks_plays_other_seeds_and_they_count() -> None:
    checks = load("run_checks")
    stage = checks.get_simulations("whole", 77)
    assert stage.command[1:] == ["scripts/soak.py", "--backend", "both", "--from", "77", "--rounds", "9500"]
    assert int(checks.get_simulations("first", 77).command[-1]) < 1_000
    assert checks.summarize([checks.Outcome(stage, 1, 2.0, "")], 77, 2.0) == 1
    assert checks.summarize([checks.Outcome(stage, 0, 2.0, "")], 77, 2.0) == 0


def test_few_seeds_of_the_checks_play_on_a_chain_and_say_how_to_play_them_again() -> None:
    soak = load("soak")
    drawn = [soak.draw(seed, "both") for seed in range(320)]
    on_chain = [one for one in drawn if one.backend == "solana"]
    assert len(on_chain) == 10
    assert all(one.origin == f"python scripts/soak.py --backend solana --seed {one.seed}" for one in on_chain)
    assert soak.draw(5, "solana").backend == "solana"
    assert soak.draw(5, "tcp") == soak.draw(5, "both")


def test_a_stage_beside_others_is_shown_when_they_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    checks = load("run_checks")
    stage = checks.Stage("seeds", [sys.executable, "-c", "print('played', flush=True); raise SystemExit(3)"])
    with checks.running_beside([stage]) as finish:
        (outcome,) = finish()
    assert (outcome.stage, outcome.returncode) == (stage, 3)
    assert "played" in capsys.readouterr().out


def test_the_checks_say_when_everything_was_run_last_and_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = load("run_checks")
    monkeypatch.setattr(checks, "STAMP", tmp_path / "stamp")
    done = [checks.Outcome(checks.Stage(name, []), code, 1.0) for name, code in (("lint", 0), ("tests", 1))]
    assert checks.summarize(done, 1, 2.0) == 1
    assert "was run last: never in this checkout" in capsys.readouterr().out
    checks.write_stamp(done)
    checks.summarize(done, 1, 2.0)
    assert "failed: tests" in capsys.readouterr().out
    checks.write_stamp(done[:1])
    assert checks.read_stamp().endswith("all was well")


def test_the_second_tier_has_all_that_the_first_leaves_out() -> None:
    checks = load("run_checks")
    names = {tier: {stage.name for stage in checks.get_tests(tier, 1)} for tier in checks.TIERS}
    assert names["whole"] - names["first"] == {"other Pythons"}
    assert checks.get_programs("first")[0].command[-1] == "--verify"
    first, whole = (checks.TIERS[tier] for tier in ("first", "whole"))
    assert all(getattr(whole, name) > getattr(first, name) for name in whole.__dataclass_fields__)
