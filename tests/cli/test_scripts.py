"""The set-up touches its own environment alone, and says what is missing in one command."""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from coverage import CoverageData

from psyche.core.state import bits, config_checks
from psyche.testnet.scratch import hold_folder

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / "psyche" / "core" / "state"


def bash(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    whole = f"set -euo pipefail\nsource {ROOT}/scripts/setup.sh\n{script}"
    env = {"PATH": "/usr/bin:/bin", "PSYCHE_PYTHON": sys.executable} | environment
    return subprocess.run(["/bin/bash", "-c", whole], capture_output=True, text=True, check=False, env=env)


def is_own(folder: Path) -> bool:
    return bash(f"VENV={folder}\nis_own_environment").returncode == 0


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="the tests run outside a virtual environment")
def test_an_environment_of_its_own_is_recognised() -> None:
    assert is_own(Path(sys.prefix))


def test_what_an_interruption_leaves_is_no_environment(tmp_path: Path) -> None:
    assert not is_own(tmp_path / "missing")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    assert not is_own(tmp_path)  # this python would install into the machine's own
    (tmp_path / "pyvenv.cfg").write_text("")
    assert not is_own(tmp_path)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            'PYTHON=/bin/false\nuname() { if [ "$1" = -s ]; then echo Linux; else echo riscv64; fi; }\ncheck_machine',
            r"sudo apt-get install -y python3-venv.* python3-dev",
        ),
        ("uname() { echo Darwin; }\ncheck_machine", "Psyche runs on Linux; this is Darwin"),
        ("df() { printf 'head\\n/dev/x 1 1 500 1%% /\\n'; }\ncheck_disk", "500 MB free"),
        ("command() { return 1; }\nfind_python", r"Python 3\.11, 3\.12 or 3\.13 is needed"),
    ],
    ids=["a missing package", "another system", "too little disk", "no usable Python"],
)
def test_what_the_set_up_lacks_is_said_with_the_way_out(script: str, told: str) -> None:
    done = bash(script)
    assert done.returncode == 1
    assert re.search(told, done.stderr)


def test_the_stamp_does_not_depend_on_how_python_is_called(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(Path(sys.executable).resolve())
    stamps = {bash(f"PYTHON={path}\nwanted_stamp dev").stdout for path in (Path(sys.executable).resolve(), link)}
    assert len(stamps) == 1
    assert "" not in stamps


@pytest.mark.parametrize(
    ("installed", "wanted", "is_there", "chosen"),
    [
        ([], "train", False, "train"),
        (["train"], "train", True, "train"),
        (["train"], "dev", False, "dev"),
        (["train", "dev"], "train", True, "dev"),
        (["train", "dev"], "dev", True, "dev"),
    ],
)
def test_the_tools_of_contributors_are_installed_for_them_alone_and_stay(
    tmp_path: Path, installed: list[str], wanted: str, is_there: bool, chosen: str
) -> None:
    stamps = "".join(f"wanted_stamp {packages} >>$STAMP\n" for packages in installed)
    setting = f"STAMP={tmp_path}/stamp\nUNFINISHED={tmp_path}/unfinished\nPYTHON=$PSYCHE_PYTHON\n{stamps}"
    done = bash(f"{setting}is_installed {wanted} && echo yes || echo no\nchoose_packages {wanted}")
    assert done.stdout.split() == ["yes" if is_there else "no", chosen], done.stderr
    outdated = bash(f"{setting}UV_VERSION=0\nis_installed {wanted} && echo yes || echo no")
    assert outdated.stdout.split() == ["no"], outdated.stderr


@pytest.mark.parametrize("packages", ["train", "dev"])
def test_a_set_up_installs_the_wanted_packages_and_remembers_it(tmp_path: Path, packages: str) -> None:
    fakes = (
        'make_venv() { mkdir -p "$VENV"; }\ncheck_disk() { :; }\n'
        "install_packages() { echo installs $1; }\ncheck_packages() { echo checks $1; }"
    )
    setting = f"ROOT={tmp_path}\nVENV=$ROOT/.venv\nSTAMP=$VENV/stamp\nUNFINISHED=$ROOT/unfinished"
    copies = f"cp -r {ROOT}/requirements {ROOT}/pyproject.toml $ROOT"
    done = bash(f"{setting}\n{copies}\n{fakes}\nset_up {packages}\necho again\nset_up train\nset_up {packages}")
    first, again = done.stdout.split("again\n")
    assert f"installs {packages}\nchecks {packages}\n" in first, done.stderr
    assert again == ""


SHOW_BYTECODE = '"$PSYCHE_PYTHON" -c "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"'


def test_bytecode_that_may_not_stand_beside_the_sources_is_kept_in_the_environment() -> None:
    assert bash(f"keep_bytecode\n{SHOW_BYTECODE}").stdout.split() == ["False", "None"]
    done = bash(f"keep_bytecode\n{SHOW_BYTECODE}", PYTHONDONTWRITEBYTECODE="1")
    assert done.stdout.split() == ["False", str(ROOT / ".venv" / "bytecode")]


def test_a_signal_takes_along_what_was_started() -> None:
    done = bash("(sleep 0.3; kill -INT $$) &\nguarded bash -c 'sleep 60 & sleep 60'\necho not reached")
    assert done.returncode == 130
    assert "Nothing is left running" in done.stdout
    assert "not reached" not in done.stdout


def test_cleaning_leaves_a_running_demo_alone_with_what_it_shares(tmp_path: Path) -> None:
    names = ("demo-20260101-120000", "demo-20260101-120001", "demo-kill-20260101-120000", "my-run-20260101-120000")
    folders = [tmp_path / "runs" / name for name in (*names, "cache")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    used = (folders[1], folders[4])
    program = "import sys, pathlib\nfrom psyche.testnet.scratch import hold_folder\n"
    program += "for folder in sys.argv[1:]: hold_folder(pathlib.Path(folder))\nprint('held', flush=True)\ninput()"
    clean = f"source {ROOT}/scripts/clean.sh\ncd {tmp_path}\nclean_runs"
    with subprocess.Popen(
        [sys.executable, "-c", program, *map(str, used)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "held\n"
        done = bash(clean)
        running.communicate("\n")
    left = "left alone, because a run is using them: runs/demo-20260101-120001 runs/cache"
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, left), done.stderr
    assert [folder for folder in folders if (folder / "file").exists()] == [folders[1], folders[3], folders[4]]
    assert "left alone" not in bash(clean).stdout
    assert [folder for folder in folders if folder.exists()] == [folders[3]]


def test_a_folder_that_is_removed_while_it_is_being_held_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[int] = []
    flock = fcntl.flock

    def lose_once(descriptor: int, how: int) -> None:
        if not removed:
            (tmp_path / "cache").rmdir()
            removed.append(descriptor)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lose_once)
    hold_folder(tmp_path / "cache")
    assert (tmp_path / "cache").is_dir()
    assert bash(f"flock --nonblock {tmp_path / 'cache'} true").returncode == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("test", "-h"), 0, "bash scripts/test --checks"),
        (("test", "--help"), 0, "bash scripts/test --checks"),
        (("install", "--help"), 0, "Installs the command `psyche` into .venv"),
        (("demo", "--help"), 0, "--clients.*--minutes.*--kill.*--keep.*--clean"),
        (("install", "--demo"), 2, "bash scripts/install"),
    ],
)
def test_a_script_explains_itself_before_it_sets_up_anything(words: tuple[str, str], code: int, told: str) -> None:
    done = run_script(*words)
    assert done.returncode == code
    assert re.search(told, done.stderr if code else done.stdout, re.DOTALL)
    assert not (done.stdout if code else done.stderr)


def run_script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(ROOT / "scripts" / name), *words], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "PSYCHE_PYTHON": "/bin/false"},
    )  # fmt: skip


@pytest.mark.whole
def test_lines_of_the_core_count_only_while_its_own_tests_run(tmp_path: Path) -> None:
    kept = tmp_path / "coverage"
    ours, others = "tests/core/state/test_bits.py", "tests/config/test_load_run.py"
    environment = {**os.environ, "COVERAGE_FILE": str(kept)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    for arguments in (["pytest", "-q", "-p", "scripts.cover_core", ours, others], ["coverage", "combine", "--quiet"]):
        subprocess.run([sys.executable, "-m", *arguments], check=True, cwd=ROOT, env=environment, capture_output=True)
    data = CoverageData(str(kept))
    data.read()
    reached = {name: set(data.lines(str(STATE / name)) or []) for name in ("bits.py", "config_checks.py")}
    problems = config_checks.find_config_problems
    assert get_body(bits.get_members) <= reached["bits.py"]
    assert problems.__code__.co_firstlineno in reached["config_checks.py"]  # imported
    assert not reached["config_checks.py"] & get_body(problems)


def get_body(function: Callable[..., object]) -> set[int | None]:
    return {line for _, _, line in function.__code__.co_lines()} - {function.__code__.co_firstlineno}
