"""scripts/build-programs: what it records, compares and refuses. The builds themselves run in the checks."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from sbf_build import cli, places, record, sources
from sbf_build.debian import Tools
from sbf_build.errors import BuildError
from sbf_build.pins import read_pins
from sbf_build.places import BUILT, NAMES, PROGRAMS, get_file

ROOT = PROGRAMS.parent


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of built programs that belongs to the sources."""
    monkeypatch.setattr(record, "BUILT", tmp_path)
    files = {get_file(name, sbpf): f"{name} {sbpf}".encode() for name in NAMES for sbpf in places.FORMATS}
    record.write_files(tmp_path, files)
    record.write_record("rustc 1, LLVM 2", list(NAMES))
    return tmp_path


def test_a_folder_that_was_just_written_is_verified(built: Path) -> None:
    record.verify()
    assert len((built / record.SUMS).read_text().splitlines()) == len(NAMES) * len(places.FORMATS)


def test_programs_whose_sources_have_changed_are_named(built: Path) -> None:
    known = json.loads((built / record.RECORD).read_text())
    known["sources"]["treasurer"] = "other"
    (built / record.RECORD).write_text(json.dumps(known))
    with pytest.raises(BuildError, match=r"have changed .*: treasurer\.\n.*bash scripts/build-programs"):
        record.verify()


def test_a_file_that_is_not_the_recorded_one_is_named(built: Path) -> None:
    (built / "v3" / "psyche_replay.so").write_bytes(b"other")
    with pytest.raises(BuildError, match=r"not the ones that SHA256SUMS records: v3/psyche_replay\.so"):
        record.verify()
    (built / "v3" / "psyche_replay.so").unlink()
    with pytest.raises(BuildError, match=r"v3/psyche_replay\.so"):
        record.verify()


def test_a_build_with_other_bytes_is_refused_with_the_tools_of_both(built: Path) -> None:
    same, other = {get_file("replay", 0): b"replay 0"}, {get_file("replay", 0): b"other"}
    record.compare(same, "rustc 1, LLVM 2")
    with pytest.raises(BuildError, match=r"psyche_replay\.so\.\nBuild"):
        record.compare(other, "rustc 1, LLVM 2")
    with pytest.raises(BuildError, match="built with rustc 1, LLVM 2; here is rustc 3"):
        record.compare(other, "rustc 3, LLVM 4")


def test_a_program_is_made_of_its_crate_and_those_it_depends_on() -> None:
    assert sources.find_crates("arithmetic") == {"arithmetic"}
    assert sources.find_crates("replay") == {"replay", "rules"}
    assert {"coordinator", "rules", "authorizer"} <= sources.find_crates("treasurer")


def test_a_changed_source_changes_the_digests_of_the_programs_made_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.get_digests()
    read = Path.read_bytes
    changed = PROGRAMS / "coordinator" / "src" / "lib.rs"
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n" * (path == changed))
    after = sources.get_digests()
    assert {name for name in NAMES if before[name] != after[name]} == {"coordinator", "treasurer"}


def test_pins_name_every_crate_with_version_and_digest() -> None:
    pins = read_pins((PROGRAMS / "Cargo.pins").read_text())
    assert ("anchor-lang", "1.2.2") in {(pin.name, pin.version) for pin in pins}
    assert all(len(bytes.fromhex(pin.digest)) == 32 for pin in pins)
    assert len(set(pins)) == len(pins)


def test_a_pin_that_cannot_be_read_is_named_by_its_line() -> None:
    with pytest.raises(BuildError, match="line 2: a name, a version and a digest are expected, not 'b 2'"):
        read_pins("a 1 00\nb 2\n")


def test_every_built_program_is_listed_with_its_digest() -> None:
    listed = [line.split("  ")[1] for line in (BUILT / record.SUMS).read_text().splitlines()]
    wanted = [str(get_file(name, sbpf)) for name in NAMES for sbpf in places.FORMATS]
    assert set(wanted) <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "folder", "--check"], "--out is for builds of your own"),
        (["--arch", "3"], "--arch goes with --out or --check"),
        (["--recent"], "--recent goes with --check"),
        (["--program", "rules"], "invalid choice: 'rules'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        ["bash", "scripts/build-programs", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert said in ended.stderr


def test_without_debian_and_cargo_the_way_out_is_said(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(PROGRAMS / "tools")}
    command = [sys.executable, "-m", "sbf_build", "--program", "replay"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "bash scripts/build-programs --install" in ended.stderr
    assert "cargo build-sbf" in ended.stderr


def lack_tools() -> Tools:
    raise BuildError("cargo is missing")


@pytest.fixture
def changed_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)  # the test goes on after main
    monkeypatch.setattr(cli, "verify", lambda: None)
    monkeypatch.setattr(cli, "has_recent_changes", lambda: True)
    monkeypatch.setattr(cli, "find_missing", list)
    monkeypatch.setattr(cli, "find_tools", lack_tools)


@pytest.mark.usefixtures("changed_today")
def test_without_tools_a_change_of_today_is_compared_by_digests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert cli.main(["--check", "--recent"]) == 0
    assert "No build, to compare bytes:\ncargo is missing" in capsys.readouterr().out
    assert cli.main(["--check"]) == 1


@pytest.mark.usefixtures("changed_today")
def test_in_ci_missing_packages_are_installed_for_a_change_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[bool] = []
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(cli, "find_missing", lambda: ["rustc-web"])
    monkeypatch.setattr(cli, "install", lambda: installed.append(True))
    assert cli.main(["--check", "--recent"]) == 0
    assert installed == [True]


@pytest.mark.usefixtures("changed_today")
def test_a_build_that_fails_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise BuildError("rustc ended with exit code 1")

    monkeypatch.setattr(cli, "_build_here", fail)
    monkeypatch.setattr(cli, "find_tools", lambda: SimpleNamespace(text=record.read_tools()))
    assert cli.main(["--check", "--recent"]) == 1
    monkeypatch.setattr(cli, "find_tools", lambda: SimpleNamespace(text="rustc of another day"))
    assert cli.main(["--check", "--recent"]) == 0  # other tools give other bytes
