"""docs/owner.md: its commands exist with their options, and what it says to write is a run that can start."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from psyche.cli.app import app
from psyche.config.load import load_run

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "owner.md").read_text(encoding="utf-8")
LINES = sorted(set(re.findall(r"^psyche .+$", TEXT, re.MULTILINE)))


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_page_is_one_of_the_program_with_these_options(line: str) -> None:
    _, *words = shlex.split(line)
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("psyche", words).close()


def test_the_run_that_goes_on_from_a_finished_one_can_start_as_the_page_says(tmp_path: Path) -> None:
    (head,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    name, _, progress = head.partition("\n\n")
    first = (ROOT / "config" / "llama-20m" / "run.toml").read_text(encoding="utf-8")
    changed = re.sub(r"total_steps = \d+", "total_steps = 5000", first.replace('run_id = "llama-20m"', name))
    (tmp_path / "run.toml").write_text(f"{changed}\n{progress}")
    run = load_run(tmp_path)
    assert (run.run_id, run.progress.step, run.progress.epoch_start_data_index) == ("second-run", 161, 1_280)
    assert run.config.total_steps == run.model.lr_schedule.total_steps == 5_000
