"""`psyche simulate` and `psyche trace` as a person calls them."""

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kits.cluster import DEADLINE_S
from kits.commands import call, refuse, run
from kits.tier import few

from psyche.cli.commands.simulate import format_played, parse_parameters
from psyche.cli.helpers.outputs import check_target
from psyche.cli.helpers.progress import ProgressBar
from psyche.errors import ConfigError
from psyche.forecast.recorder import Played
from psyche.telemetry.console import Console
from psyche.telemetry.text import format_bytes

ROOT = Path(__file__).resolve().parents[2]
PROFILE = """
[[class]]
name = "home"
share = 1.0
tokens_per_s = 16
up_mbit_s = 100
down_mbit_s = 100
load_s = 0.5
"""
BASE = ("simulate", "--state", ROOT / "config" / "dummy", "--parameters", "1e8", "--clients", "3", "--rounds", "3")
QUICK = (*BASE[:-1], "1", "--no-suggestions", "--profile")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.toml"
    path.write_text(PROFILE)
    return path


def test_a_run_is_played_and_everything_is_written(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche.cli.helpers.progress.PLAIN_EVERY_S", 0.0)
    figures, picture, events = tmp_path / "f.json", tmp_path / "p.html", tmp_path / "e.jsonl"
    result = call(
        *BASE, "--profile", profile, "--no-suggestions", "--json", figures, "--picture", picture, "--events", events
    )
    for part in ("3 clients (3 home)", "3 rounds in", "tokens per second", "nobody was dropped"):
        assert part in result.output
    assert json.loads(figures.read_text())["tokens"] == 3 * 4 * 16
    assert b'"trains"' in picture.read_bytes()
    assert len(call("trace", events, "--kind", "decided", "--node", "client-1").stdout.splitlines()) == 3
    progress = re.findall(r"^playing, round \[.*\d+% (\d) of 3", result.output, re.MULTILINE)
    assert progress[-1] == "3"
    summed = run("trace", events, "--summary", "--json", tmp_path / "s.json")
    assert "3 rounds in" in summed.output
    assert "client-2" in summed.output
    for line in result.output.splitlines():
        if line.startswith(("time per round", "on average", "tokens per second")):
            assert line in summed.output.splitlines()
    told = next(one for one in json.loads(figures.read_text())["members"] if one["rounds_as_member"])
    assert f"  {format_bytes(told['bytes_sent'])}  " in summed.output
    assert not json.loads((tmp_path / "s.json").read_text())["stand_in"]


@pytest.mark.whole
def test_a_run_on_a_chain_is_played_with_what_it_costs(profile: Path, tmp_path: Path) -> None:
    figures, picture, events = tmp_path / "f.json", tmp_path / "p.html", tmp_path / "e.jsonl"
    result = run(
        *BASE, "--profile", profile, "--no-suggestions", "--backend", "solana", "--json", figures, "--picture", picture,
        "--events", events,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    for part in (
        "\non a chain: slots of 400 ms", "\nwarning: config.round_witness_time 1 s: on", "\nwarning: bootstrap: ",
        "3 rounds in", "are the chain's: with a server it is", "a member pays for",
    ):  # fmt: skip
        assert part in result.output
    chain = json.loads(figures.read_text())["chain"]
    assert chain["round_s"] > chain["of_chain_s"] > chain["server_round_s"]
    assert b'"trains"' in picture.read_bytes()
    assert "3 rounds in" in run("trace", events, "--summary").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("trace", "e.jsonl", "--summary", "--kind", "applied"), "--kind: no effect on figures of a whole run"),
        (("trace", "e.jsonl", "--picture", "p.html", "--all-kinds"), "--all-kinds: no effect on figures"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(arguments: tuple[object, ...], told: str) -> None:
    assert told in refuse(*arguments).output


def test_a_filter_that_fits_no_event_is_told(tmp_path: Path) -> None:
    events = tmp_path / "e.jsonl"
    events.write_text('{"t": 1.0, "node": "client-0", "kind": "applied"}\n')
    result = call("trace", events, "--node", "client-9")
    assert result.stdout == ""
    assert result.stderr == "none of 1 events matches\n"


def test_suggestions_are_played_and_printed(profile: Path, tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    result = call(*BASE, "--profile", profile, "--json", figures)
    assert re.search(r"\n\d changes? tried; (these were better:|none was better)", result.output)
    for one in json.loads(figures.read_text())["suggestions"]:
        assert f"  {one['change']}: tokens/s" in result.output
        assert one["verdict"] in ("better", "trade-off")


def test_without_a_terminal_progress_is_plain_lines() -> None:
    stream, clock = io.StringIO(), iter(range(0, 1000, 10))
    with ProgressBar("playing", Console(stream), now=lambda: float(next(clock)), show="{} rounds".format) as bar:
        bar.set(5, 20)
    assert stream.getvalue().endswith(" 25% 5 rounds of 20 rounds, 30 s left\n")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_shows_life_at_once_and_what_was_given_up() -> None:
    shown: list[str] = []
    console = Console(live=True)
    console.set_status = shown.append  # type: ignore[method-assign]
    with ProgressBar("playing, round", console, now=lambda: 1.0, show=str) as bar:
        bar.set(0, 3, "starting")
    assert shown[0].endswith("  0% 0 of 3, starting")
    assert format_played(Played(2, 0, 21.0)) == "21 s simulated"
    assert format_played(Played(2, 1, 100.0)) == "1 min 40 s simulated, 1 round given up"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--parameters", "many"), "--parameters 'many': must be a number of parameters from 1 to 1e13"),
        (("--parameters", "1e30"), "must be a number of parameters from 1 to 1e13"),
        (("--profile", "missing.toml"), "missing.toml: cannot be read"),
        (("--faults", "missing.toml"), "missing.toml: cannot be read"),
        (("--picture", "run.svg"), "must end in .html"),
        (("--json", "no/such/f.json"), "there is no folder"),
        (("--rounds", "99999999999"), "error: --rounds 99999999999: must be from 1 to 100000\n"),
        (("--rounds", "0"), "error: --rounds 0: must be from 1 to 100000\n"),
        (("--clients", "1"), "config.init_min_clients is 2, but only 1 clients"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_played(change: tuple[str, str], told: str, profile: Path) -> None:
    result = refuse(*BASE, "--profile", profile, *change)
    assert told in result.output
    assert "rounds in" not in result.output


def test_what_cannot_be_replayed_is_told(tmp_path: Path) -> None:
    result = refuse("replay", "nothing")
    assert "must be a seed (a number), or the TOML file of a scenario" in result.output
    path = tmp_path / "scenario.toml"
    path.write_text("[[byzantine]]\nwho = 99\nkind = 'replay'\n")
    result = refuse("replay", path)
    assert "scenario.toml: byzantine[0]: who is 99, must be the number of a client, 0 to 3" in result.output


def test_a_run_that_would_stand_still_is_exit_code_1(profile: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "kill"\nwho = ["client-0", "client-1"]\nat_s = 5.0\n')
    result = refuse(*BASE, "--profile", profile, "--faults", plan)
    assert "an epoch needs 2 clients, 1 was there" in result.output
    assert "tried" not in result.output


def test_a_scenario_is_played_again_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text("seed = 3\n[config]\ntotal_steps = 4\n[[class]]\ncount = 2\n")
    result = call("replay", path, "--kind", "applied", "--node", "client-0")
    lines = result.stdout.splitlines()
    assert all(line.split()[1:3] == ["client-0", "applied"] for line in lines[:-1])
    assert len(lines) > 3
    assert lines[-1].startswith("seed 3: ")


@pytest.mark.parametrize(("text", "value"), [("", 0), ("1e9", 10**9), ("25000", 25_000)])
def test_parameters_are_read_as_people_write_them(text: str, value: int) -> None:
    assert parse_parameters(text) == value


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e14", "1G"])
def test_parameters_that_are_no_size_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--parameters"):
        parse_parameters(text)


@pytest.mark.parametrize(
    ("number", "code", "ignored"),
    few(
        [
            (signal.SIGTERM, 143, "signal.signal(2, signal.SIG_IGN); "),
            (signal.SIGINT, 130, ""),
            (signal.SIGTERM, 143, ""),
        ]
    ),
    ids=few(["sigterm where a script has it ignore ctrl-c", "ctrl-c", "sigterm"]),
)
def test_ctrl_c_and_sigterm_end_a_simulation_at_once_and_leave_nothing(
    number: signal.Signals, code: int, ignored: str, profile: Path, tmp_path: Path
) -> None:
    program = (
        f"import signal; {ignored}"
        f"from pathlib import Path; from psyche.sim import world; world.SHARED_MEMORY = Path({str(tmp_path)!r}); "
        "from psyche.cli.main import main; main()"
    )
    arguments = [*map(str, BASE), "--profile", str(profile), "--rounds", "2000"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert "3 clients" in process.stdout.readline()
    deadline = time.monotonic() + DEADLINE_S
    while not list(tmp_path.glob("psyche-simulator-*/client-2")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the simulation has not begun"
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, errors
    assert "Traceback" not in errors, errors
    assert list(tmp_path.glob("psyche-simulator-*")) == []


def test_what_a_plan_has_for_later_than_the_end_is_told(profile: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    table = '[[fault]]\nkind = "kill"\nwho = ["client-0"]\nfor_s = 1.0\nat_s = '
    plan.write_text(f"{table}2.0\n{table}5000.0\n")
    result = call(*BASE, "--profile", profile, "--no-suggestions", "--faults", plan)
    assert re.search(r"\nfault\[1\], kill at 5000 s, never happened: the simulation ended after \d+ s\n", result.output)
    assert "fault[0]" not in result.output


def test_a_run_that_is_shorter_than_what_is_played_is_told(profile: Path, tmp_path: Path) -> None:
    text = (ROOT / "config" / "dummy" / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(re.sub(r"total_steps = \d+", "total_steps = 1", text, count=1))
    result = run(*BASE, "--profile", profile, "--no-suggestions", "--rounds", "2", "--state", tmp_path)
    assert "the real run ends sooner: its total_steps is 1, but 2 rounds are simulated\n" in result.output


def test_a_plan_that_is_no_text_is_named_once(profile: Path, tmp_path: Path) -> None:
    plan = tmp_path / "bad.toml"
    plan.write_bytes(b"\xff\xfe")
    assert refuse(*BASE, "--profile", profile, "--faults", plan).stderr.count("bad.toml") == 1


# --- files and standard output: refused before the work, or each lost for itself -----------------------------


@pytest.mark.parametrize("option", ["--json", "--events", "--picture"])
def test_a_target_that_cannot_be_written_is_refused_before_anything_is_played(
    option: str, profile: Path, tmp_path: Path
) -> None:
    (tmp_path / "d.html").mkdir()
    for path, told in ((tmp_path / "d.html", "is a folder"), (Path("/proc/x.html"), "cannot be written: ")):
        result = refuse(*QUICK, profile, option, path)
        assert f"error: {option} {path}: {told}" in result.output
        assert "rounds in" not in result.output


def test_looking_at_a_target_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    check_target("--json", path)
    assert list(tmp_path.iterdir()) == []
    path.write_text("old")
    check_target("--json", path)
    assert path.read_text() == "old"
    with pytest.raises(ConfigError, match="there is no folder"):
        check_target("--json", tmp_path / "no" / "f.json")


def test_an_output_that_fails_costs_no_other_one(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, _data: bytes, temporary: Path) -> None:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psyche.watch.saved.replace_file", fail)
    figures = tmp_path / "f.json"
    picture = tmp_path / "p.html"
    result = refuse(*QUICK, profile, "--json", figures, "--events", "/dev/full", "--picture", picture)
    assert "error: events /dev/full: cannot be written: No space left on device\n" in result.stderr
    assert f"error: picture {picture}: cannot be written: No space left on device\n" in result.stderr
    assert json.loads(figures.read_text())["clients"] == 3
    assert not [path for path in tmp_path.iterdir() if ".part" in path.name]


def test_standard_output_that_cannot_be_written_is_one_line_on_stderr(profile: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "psyche", *map(str, QUICK), str(profile)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
