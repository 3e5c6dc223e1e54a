"""CONTRIBUTING.md: its commands run, its paths are there; the hooks of pre-commit do what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
LONG = ("scripts/test", "scripts/mutants.py", "generate.py", "generate_layout.py", "--rounds")  # minutes, or they write
NOT_YET_THERE = {".venv", "build/site"}


def get_commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def split_command(line: str) -> tuple[dict[str, str], list[str]]:
    """Variables and words, with the programs of the environment that runs this test."""
    words = shlex.split(line, comments=True)
    given = [word for word in words if re.match(r"[A-Z]+=", word)]
    rest = [str(BIN / word.removeprefix(".venv/bin/")) if word.startswith(".venv/bin/") else word for word in words]
    return dict(word.split("=", 1) for word in given), rest[len(given) :]


def run(words: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, check=False, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=300
    )


QUICK = [line for line in get_commands() if not any(text in line for text in LONG)]
SLOW = [line for line in get_commands() if line not in QUICK]


def test_the_page_has_commands_of_both_sorts() -> None:
    assert len(QUICK) >= 3
    assert len(SLOW) >= 4


@pytest.mark.whole
@pytest.mark.parametrize("line", QUICK)
def test_a_quick_command_runs_as_it_stands(line: str) -> None:
    env, words = split_command(line)
    done = run(words, **env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("line", SLOW)
def test_a_long_command_names_a_script_and_options_that_it_has(line: str) -> None:
    _, words = split_command(line)
    assert (ROOT / words[1]).is_file()
    options = [word for word in words[2:] if word.startswith("--")]
    said = run([*words[:2], "--help"]).stdout if options else ""
    assert [option for option in options if option not in said] == []


def test_every_path_and_every_short_name_is_there() -> None:
    named = {word for word in re.findall(r"`([\w./-]+)`", TEXT) if "/" in word or word.endswith((".md", ".toml"))}
    assert len(named) > 10
    assert [name for name in sorted(named - NOT_YET_THERE) if not (ROOT / name).exists()] == []
    recipes = re.findall(r"^(\w+).*:$", (ROOT / "justfile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`just (\w+)", TEXT)) <= set(recipes)


HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


def test_no_hook_downloads_anything() -> None:
    assert [repository["repo"] for repository in HOOKS] == ["local"]
    assert {hook["language"] for hook in HOOKS[0]["hooks"]} == {"system"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in HOOKS[0]["hooks"])


@pytest.mark.parametrize(
    "hook", [h for h in HOOKS[0]["hooks"] if "pre-push" not in h.get("stages", [])], ids=lambda hook: hook["id"]
)
def test_a_hook_of_each_commit_passes_on_this_file(hook: dict[str, str]) -> None:
    _, words = split_command(hook["entry"])
    done = run([*words, *([] if hook.get("pass_filenames") is False else [__file__])])
    assert done.returncode == 0, done.stdout + done.stderr
