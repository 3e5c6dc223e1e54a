"""The wheel without extras serves servers and owners; what it lacks is named with the command that installs it."""

import json
import os
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from psyche.cli.helpers import errors
from psyche.testnet.free_port import choose_port

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORK = "@"  # stands for the folder of the test
RUNS = {
    "server run with its data server": f"server run --state {WORK}/run --state-dir {WORK}/state --bind-ip 127.0.0.1",
    "server validate-config": f"server validate-config --state {WORK}/run",
    "data tokenize": f"data tokenize {WORK}/text.txt --output {WORK}/train.bin",
    "trace": f"trace {WORK}/state/events.jsonl",
    "simulate": f"simulate --state {ROOT}/config/dummy --clients 2 --parameters 1e4 --rounds 1 --no-suggestions "
    f"--profile {ROOT}/config/profiles/home.toml",
    "doctor --server": "doctor --server",
}
NEEDS = {
    "client train": (f"client train --run-id x --server-addr 127.0.0.1:1 --data-dir {WORK}/x", "libp2p"),
    "data tokenize of Parquet": (f"data tokenize {WORK}/rows.parquet --output {WORK}/rows.bin", "pyarrow"),
    "model init": (f"model init --config {ROOT}/config/demo/model.json --output {WORK}/model", "torch"),
    "train": (f"train --model {ROOT}/config/demo/model.json --data {WORK}/run/data", "torch"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Name of the command -> its exit code and output."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text.txt").write_text("Plain text, and a little more of it.\n" * 200)
    (folder / "rows.parquet").write_bytes(b"PAR1")
    (folder / "run" / "data").mkdir(parents=True)
    (folder / "run" / "data" / "train.bin").write_bytes(bytes(20_000))
    dummy = (ROOT / "config" / "dummy" / "run.toml").read_text()
    (folder / "run" / "run.toml").write_text(dummy.replace('"Dummy"', f'{{ Server = "127.0.0.1:{choose_port()}" }}'))
    seed = list(range(32))
    data = f'dir = "data"\ntoken_size = "TwoBytes"\nseq_len = 16\nshuffle_seed = {seed}\n'
    (folder / "run" / "data.toml").write_text(data)
    lines = [*RUNS.values(), *(line for line, _ in NEEDS.values())]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("base_install_child.py")), str(folder)],
        input="\n".join(lines).replace(WORK, str(folder)), capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([*RUNS, *NEEDS], ((code, said) for code, said in found), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_command_of_servers_and_owners_needs_no_extra(outcomes: dict[str, tuple[int, str]], name: str) -> None:
    code, said = outcomes[name]
    assert code == 0, said


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_that_needs_the_extra_says_how_to_install_it(outcomes: dict[str, tuple[int, str]], name: str) -> None:
    code, said = outcomes[name]
    assert code == 1
    assert f"this command needs {NEEDS[name][1]}, which is not installed here" in said
    assert errors.get_install_command() in said
    assert "Traceback" not in said


def test_in_a_checkout_its_script_installs_what_is_missing() -> None:
    program, script = shlex.split(errors.get_install_command())
    assert program == "bash"
    assert Path(script) == ROOT / "scripts" / "install"
    assert Path(script).is_file()


@pytest.mark.parametrize(("has_pip", "start"), [(True, [sys.executable, "-m", "pip"]), (False, ["uv", "pip"])])
def test_a_wheel_installs_what_is_missing_from_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pip: bool, start: list[str]
) -> None:
    lock = tmp_path / "a folder" / "train.lock"
    lock.parent.mkdir()
    lock.touch()
    monkeypatch.setattr(errors, "LOCK", lock)
    monkeypatch.setattr(errors, "find_spec", lambda _: object() if has_pip else None)
    words = shlex.split(errors.get_install_command())
    assert words[: len(start)] == start
    assert words[-3:] == ["--no-deps", "-r", str(lock)]


def get_names(requirements: list[str]) -> set[str]:
    return {line.partition("==")[0].partition(">=")[0] for line in requirements}


def read_lock(name: str) -> list[str]:
    return (ROOT / "requirements" / f"{name}.lock").read_text().splitlines()


def test_each_lock_holds_the_one_before_in_the_same_versions() -> None:
    server, train, dev = (set(read_lock(name)) for name in ("server", "train", "dev"))
    assert server < train < dev


@pytest.mark.parametrize(("lock", "extras"), [("server", []), ("train", ["train"]), ("dev", ["train", "dev"])])
def test_a_lock_has_all_that_the_package_asks_for(lock: str, extras: list[str]) -> None:
    asked = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    assert get_names(asked) <= get_names(read_lock(lock))


def test_the_packages_that_only_training_needs_are_those_of_its_extra() -> None:
    assert get_names(PROJECT["optional-dependencies"]["train"]) == errors.TRAIN


def test_the_wheel_holds_the_package_its_types_and_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
        assert files.read("psyche/requirements/train.lock") == (ROOT / "requirements" / "train.lock").read_bytes()
    assert {name.partition("/")[0] for name in names} == {"psyche"}
    assert "psyche/py.typed" in names
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "psyche").rglob("*.py")}
    assert here <= set(names)


@pytest.mark.whole
@pytest.mark.parametrize("is_kept", [True, False])
def test_bytecode_is_read_and_kept_where_the_scripts_keep_it(tmp_path: Path, is_kept: bool) -> None:
    if is_kept:
        (tmp_path / "bytecode").mkdir()
    program = (
        f"import sys; sys.prefix = {str(tmp_path)!r}; sys.argv[1:] = ['doctor', '--help']; "
        "from psyche.cli.main import main; main()"
    )
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True,
        env=settings | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert bool(list(tmp_path.rglob("app.*.pyc"))) is is_kept
