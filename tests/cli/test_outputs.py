"""Files and standard output of `psyche simulate`: refused before the work, or each lost for itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from psyche.cli.app import app
from psyche.cli.helpers.outputs import check_target
from psyche.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PROFILE = '[[class]]\nname = "home"\nshare = 1.0\ntokens_per_s = 16\nup_mbit_s = 100\ndown_mbit_s = 100\n'
BASE = ("simulate", "--state", ROOT / "config" / "dummy", "--parameters", "1e8", "--clients", "2", "--rounds", "1")


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    path = tmp_path / "profile.toml"
    path.write_text(PROFILE)
    return [str(one) for one in (*BASE, "--profile", path, "--no-suggestions")]


@pytest.mark.parametrize("option", ["--json", "--events", "--picture"])
def test_a_target_that_cannot_be_written_is_refused_before_anything_is_played(
    option: str, base: list[str], tmp_path: Path
) -> None:
    (tmp_path / "d.png").mkdir()
    for path, told in ((tmp_path / "d.png", "is a folder"), (Path("/proc/x.png"), "cannot be written: ")):
        result = CliRunner().invoke(app, [*base, option, str(path)])
        assert result.exit_code == 1
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
    base: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_accounts: Any, _title: str, path: Path, _describe: Any) -> None:
        path.with_suffix(".part.png").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("psyche.analysis.timeline.write_picture", fail)
    figures = tmp_path / "f.json"
    picture = tmp_path / "p.png"
    result = CliRunner().invoke(
        app, [*base, "--json", str(figures), "--events", "/dev/full", "--picture", str(picture)]
    )
    assert result.exit_code == 1
    assert "error: events /dev/full: cannot be written: No space left on device\n" in result.stderr
    assert f"error: picture {picture}: cannot be written: No space left on device\n" in result.stderr
    assert json.loads(figures.read_text())["clients"] == 2
    assert not picture.with_suffix(".part.png").exists()


def test_standard_output_that_cannot_be_written_is_one_line_on_stderr(base: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "psyche", *base], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"
