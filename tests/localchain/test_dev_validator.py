"""`psyche dev validator` as its user runs it."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from kits.chain.chain_run import SOL

from psyche.backends.solana.wallet import read_wallet
from psyche.localchain.ledger import FILE

PSYCHE = (sys.executable, "-m", "psyche", "dev", "validator")


@contextmanager
def run_validator(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The command, and what it prints of the chain by its name."""
    command = [*PSYCHE, "--port", "0", "--slot-ms", "20", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        for line in process.stdout:
            if found := re.match(r"  ([a-z ]+?)  +(\S+)", line):
                said[found[1]] = found[2]
            if "wallet" in said:
                break
        try:
            yield process, said
        finally:
            process.kill()


def call(http: str, method: str, *params: object) -> object:
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx2.post(http, json=request, trust_env=False).json()["result"]


@pytest.mark.whole
def test_ctrl_c_ends_it_and_the_next_start_goes_on(tmp_path: Path) -> None:
    with run_validator(tmp_path, "--ledger", "chain") as (process, said):
        genesis, http = said["genesis hash"], said["calls"]
        wallet = read_wallet(tmp_path / said["wallet"]).pubkey()
        assert call(http, "getBalance", str(wallet))["value"] == 1_000 * SOL  # type: ignore[index]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert (tmp_path / "chain" / FILE).exists()
    with run_validator(tmp_path, "--ledger", "chain") as (process, said):
        assert said["genesis hash"] == genesis
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    with run_validator(tmp_path, "--ledger", "chain", "--reset") as (_, said):
        assert said["genesis hash"] != genesis


@pytest.mark.whole
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_one_that_a_script_has_started_in_the_background(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for `... &`
    try:
        with run_validator(tmp_path, "--ledger", "chain") as (process, _):
            process.send_signal(number)
            assert process.wait(30) == code
    finally:
        signal.signal(signal.SIGINT, former)
    assert (tmp_path / "chain" / FILE).exists()


def fail(folder: Path, *options: str) -> str:
    done = subprocess.run([*PSYCHE, *options], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    return done.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = fail(tmp_path, "--port", str(port))
    assert f"127.0.0.1:{port}" in error
    assert "Traceback" not in error


def test_a_reset_of_nothing_and_another_validators_folder_are_refused(tmp_path: Path) -> None:
    assert "no --ledger to reset" in fail(tmp_path, "--reset")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "genesis.bin").touch()
    assert "another validator" in fail(tmp_path, "--ledger", "theirs")
