"""Watchers that clients and testnets start beside themselves: what they write, and that no round waits for them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kits.leftovers import get_processes
from kits.run_files import write_model, write_run
from kits.testnet import CalledTestnet, call_testnet
from watch.test_same_figures import of_rounds
from watch.test_screen import run_server
from watch.test_trackers import KEY, read_csv, read_wandb

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

NOWHERE = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": KEY}


def test_a_client_writes_its_run_to_trackers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "config", write_model(tmp_path / "model"), init_min_clients=1)
    data, table = tmp_path / "ada", tmp_path / "run.csv"
    with run_server(tmp_path / "server", run) as options:
        words = ["client", "train", "--run-id", "e2e", *options[:2], "--data-dir", str(data), "--local-root", str(run)]
        words += ["--csv", str(table), "--wandb-group", "demo"]
        environment = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path)}
        done = subprocess.run([sys.executable, "-m", "psyche", *words], env=environment, check=False, timeout=300)
    assert done.returncode == 0
    found = of_rounds(read_csv(table))
    assert {step for _, step in found} >= set(range(3, 13))
    assert of_rounds(read_wandb(tmp_path / "wandb")) == found
    assert "wandb sync" in next(data.rglob("watch.log")).read_text()


def find_watcher(testnet: CalledTestnet) -> int:
    for pid in get_processes(testnet.token):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"watch" in words and any(word.startswith(b"--wandb-project") for word in words):
            return pid
    return 0


def train(folder: Path, config: Path, number: signal.Signals | None = None) -> tuple[list[Any], float]:
    """The rounds of a testnet with equal weights, and their seconds; its watcher gets this signal when it begins."""
    tracked = ["--wandb-project", "psyche", "--csv", str(folder / "run.csv")] if number is not None else []
    with call_testnet(folder, config, "--num-clients", "2", *tracked) as testnet:
        if number is not None:
            testnet.wait_for("the watcher", lambda: find_watcher(testnet) > 0)
            os.kill(find_watcher(testnet), number)
        assert testnet.wait() == 0, testnet.describe()
        both = [[one for one in testnet.read(f"client-{n}") if one["kind"] == "applied"] for n in (1, 2)]
    one, other = ([(one["epoch"], one["height"], one["digest"]) for one in applied] for applied in both)
    assert one == other
    return [place[:2] for place in one], both[0][-1]["t"] - both[0][0]["t"]


def test_rounds_are_as_without_a_watcher_beside_one_that_hangs_or_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (NOWHERE | {"WANDB_DIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    config = write_run(tmp_path / "config", write_model(tmp_path / "model"), init_min_clients=2, total_steps=25)
    alone, alone_s = train(tmp_path / "alone", config)
    for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL):
        started = time.monotonic()
        rounds, rounds_s = train(tmp_path / number.name, config, number)
        print(
            f"{number.name}: rounds {rounds_s:.1f} s, alone {alone_s:.1f} s, whole {time.monotonic() - started:.1f} s"
        )
        assert rounds == alone
