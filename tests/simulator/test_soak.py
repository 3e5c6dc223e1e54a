"""What CI plays: fresh seeds in every run, which end, are told of, and fail the run where anything is violated."""

import subprocess
import sys

import pytest
from script_kit import SCRIPTS, load


def test_seeds_are_played_until_there_are_rounds_enough() -> None:
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--from", "400", "--rounds", "20", "--processes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=SCRIPTS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "seeds from 400 on"
    assert int(last.split()[0]) >= 20
    assert last.endswith("0 seeds with violations")


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [
        ("rows", "--clients", "1000000000000"),
        ("rows", "--clients", "-4"),
        ("soak", "--seed", "x"),
        ("soak", "--processes", "0"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_with_its_bounds(script: str, option: str, value: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), f"{option}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert f"argument {option}: '{value}' is not a whole number from" in done.stderr


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
    stage = checks.get_simulations(77)
    assert stage.command[1:] == ["scripts/soak.py", "--from", "77", "--rounds", "10000"]
    assert checks.summarize([checks.Outcome(stage, 1, 2.0, "")], 77, 2.0) == 1
    assert checks.summarize([checks.Outcome(stage, 0, 2.0, "")], 77, 2.0) == 0


def test_a_stage_beside_others_is_shown_when_they_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    checks = load("run_checks")
    stage = checks.Stage("seeds", [sys.executable, "-c", "print('played', flush=True); raise SystemExit(3)"])
    with checks.running_beside(stage) as finish:
        outcome = finish()
    assert (outcome.stage, outcome.returncode) == (stage, 3)
    assert "played" in capsys.readouterr().out


def test_a_stage_beside_others_ends_with_them() -> None:
    checks = load("run_checks")
    stage = checks.Stage("seeds", [sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(KeyboardInterrupt), checks.running_beside(stage):
        raise KeyboardInterrupt
