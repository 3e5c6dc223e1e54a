"""The page on the simulator, as it stands: every file written, every command run, in a fresh folder."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psyche.cli.app import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = re.findall(r"^```toml file=(\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command printed."""
    folder = tmp_path_factory.mktemp("page")
    for name, content in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    found: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            words = shlex.split(command)
            assert words[0] == "psyche"
            result = CliRunner().invoke(app, words[1:])
            assert result.exit_code == 0, f"{command}\n{result.output}"
            found[command] = result.output
    found["picture"] = str((folder / "run.html").stat().st_size)
    return found


@pytest.mark.whole
def test_every_command_of_the_page_runs(outputs: dict[str, str]) -> None:
    assert len(COMMANDS) == 6
    assert all(outputs[command] for command in COMMANDS)
    assert int(outputs["picture"]) > 10_000


@pytest.mark.whole
def test_what_the_page_says_of_its_example_holds(outputs: dict[str, str]) -> None:
    answer = outputs[COMMANDS[0]]
    assert re.search(r"rounds waited for      max_round_train_time, 30 s \(laptop missing\)", answer)
    shown = re.search(r"\nthe whole run, ([^`]*)```", TEXT)
    assert shown is not None
    for line in shown[1].splitlines():  # figures depend on who is elected
        assert line[:23] in answer
    change = re.search(
        r"(  without the 2 of class laptop: tokens/s \S+ -> \S+), .*(samples lost \S+ % -> 0.0 %, cut off \d+ -> 0)",
        answer,
    )
    assert change is not None, answer
    for part in change.groups():
        assert part in TEXT, part
    assert "\nnot settled; play more rounds: members were still leaving\n" in answer
    assert "max_round_train_time = 43" not in answer, "slower for ever than a run that drops the laptops"
    tried = re.search(r"\d changes tried; these were better:", answer)
    assert tried is not None
    assert tried[0] in TEXT


@pytest.mark.whole
def test_what_the_page_says_of_a_run_on_a_chain_holds(outputs: dict[str, str]) -> None:
    (command,) = [one for one in COMMANDS if "--backend solana" in one]
    lines = outputs[command].splitlines()
    costs = [line for line in lines if line.startswith(("median round", "a round  ", "the run, 4999 steps"))]
    assert len(costs) == 3
    assert all(line in TEXT for line in costs)


def test_every_kind_of_fault_is_named() -> None:
    from psyche.sim.faults import ALL_KINDS

    for kind in ALL_KINDS:
        assert kind in TEXT
