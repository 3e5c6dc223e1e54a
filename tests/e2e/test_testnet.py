"""`psyche local-testnet start` as a person calls it: with random kills, and with Ctrl-C on a run of `psyche init`."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kits.cluster import DEADLINE_S, find_overlong_waits
from kits.leftovers import assert_nothing_left
from kits.run_files import MakeRun
from kits.testnet import CalledTestnet, call_testnet
from typer.testing import CliRunner

from psyche.cli.app import app

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

EXIT_INTERRUPTED = 130
IMPORTS_PER_KILL = 5.0  # a client needs about four times as long to come up as its first half does to be imported
SOME_ROUNDS = 3
ATTEMPTS = 3  # a machine that gets faster meanwhile is at the end before the first kill: again, killing twice as often


def measure_imports_s() -> float:
    """How long this machine, as busy as it is, takes to import a client's first half: the better of two."""
    seconds: list[float] = []
    for _ in range(2):
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", "import psyche.client.runtime.app"], check=True, timeout=DEADLINE_S)
        seconds.append(time.monotonic() - started)
    return min(seconds)


def run_with_kills(folder: Path, config: Path, interval_s: float) -> tuple[CalledTestnet, int]:
    """A whole run in which the third client is killed again and again; its exit code."""
    arguments = ["--num-clients", "3", "--random-kill-num", "1", "--random-kill-interval", f"{interval_s:.1f}"]
    with call_testnet(folder, config, *arguments, "--allowed-to-kill", "3") as testnet:
        code = testnet.wait()
        trio.run(assert_nothing_left, testnet.token)
    return testnet, code


def run_until_killed(folder: Path, config: Path, interval_s: float) -> tuple[CalledTestnet, dict[str, Any]]:
    """A run in which at least one kill happened, and its summary."""
    for attempt in range(ATTEMPTS):
        testnet, code = run_with_kills(folder / f"testnet-{attempt}", config, interval_s / 2**attempt)
        assert code == 0, testnet.describe()
        summary = json.loads((testnet.folder / "summary.json").read_text())
        if summary["kills"]:
            return testnet, summary
    raise AssertionError(f"{ATTEMPTS} runs were over before the first kill")


def test_a_run_with_random_kills_ends_with_equal_digests_and_exit_code_0(make_run: MakeRun, tmp_path: Path) -> None:
    """The last three epochs, in which nobody is killed, are long enough for a client to come up."""
    config = make_run(
        total_steps=73, rounds_per_epoch=12, init_min_clients=2, min_clients=2,
        max_round_train_time=20, round_witness_time=5,
    )  # fmt: skip
    testnet, summary = run_until_killed(tmp_path, config, IMPORTS_PER_KILL * measure_imports_s())
    assert summary["equal"], summary
    assert summary["problems"] == []
    assert [client["kills"] for client in summary["clients"]] == [0, 0, summary["kills"]]
    assert summary["kills"] >= 1
    starts = [client["starts"] for client in summary["clients"]]
    assert starts[:2] == [1, 1]
    assert starts[2] <= 1 + summary["kills"], "who is killed before it can say so has not started"
    assert len({client["digest"] for client in summary["clients"]}) == 1
    assert len({client["weights_sha256"] for client in summary["clients"]}) == 1
    waits = [overlong for n in (1, 2, 3) for overlong in find_overlong_waits(testnet.read(f"client-{n}"))]
    assert not waits
    killed = [event for event in testnet.read("testnet") if event["kind"] == "process_killed"]
    assert [event["name"] for event in killed] == ["client-3"] * summary["kills"]
    begun = [event["t"] for event in testnet.read("client-3") if event["kind"] == "client_started"]
    assert begun[-1] > killed[-1]["t"], "it came back after the last kill"
    assert_next_steps_work(testnet, tmp_path)


def assert_next_steps_work(testnet: CalledTestnet, elsewhere: Path) -> None:
    """What the command proposes at its end can be typed in any folder, and leads on to the tutorial."""
    *commands, tutorial = testnet.output.read_text().partition("to try next:\n")[2].splitlines()
    assert [command.split()[1] for command in commands] == ["model", "watch", "trace"]
    for command in commands:
        command = command.replace(" --play", " --once")  # noqa: PLW2901 - no terminal is here
        done = subprocess.run(
            ["/bin/bash", "-c", command], cwd=elsewhere, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert "# Tutorial" in Path(tutorial.partition(": ")[2]).read_text()


def is_preparing(testnet: CalledTestnet) -> bool:
    return testnet.folder.exists()


def are_clients_starting(testnet: CalledTestnet) -> bool:
    return any(event["kind"] == "client_started" for event in testnet.read("client-1"))


def is_training(testnet: CalledTestnet) -> bool:
    return sum(event["kind"] == "trained" for event in testnet.read("client-2")) >= SOME_ROUNDS


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a new user's `psyche init` writes: a run that could go on for minutes."""
    folder = tmp_path_factory.mktemp("init") / "own-run"
    text = Path(json.__file__).parent
    result = CliRunner().invoke(app, ["init", str(folder), "--data", str(text), "--steps", "2000", "--yes"])
    assert result.exit_code == 0, result.output
    return folder


@pytest.mark.parametrize("moment", [is_preparing, are_clients_starting, is_training], ids=lambda m: m.__name__)
def test_ctrl_c_leaves_nothing_running(own_run: Path, tmp_path: Path, moment: Callable[[CalledTestnet], bool]) -> None:
    with call_testnet(tmp_path / "testnet", own_run, "--num-clients", "2") as testnet:
        testnet.wait_for(moment.__name__, lambda: moment(testnet))
        testnet.process.send_signal(signal.SIGINT)
        code = testnet.wait()
        assert code == EXIT_INTERRUPTED, testnet.describe()
        trio.run(assert_nothing_left, testnet.token)
    if moment is is_training:
        for name in ("client-1", "client-2"):
            ended = [event["cause"] for event in testnet.read(name) if event["kind"] == "client_ended"]
            assert ended == ["stopped"], testnet.describe()
