"""What the commands do and how they fail: one clear message, a documented exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import typer
from typer.testing import CliRunner

from psyche.cli import checks
from psyche.cli.app import app
from psyche.cli.common import Debug, get_leaves, show_errors
from psyche.cli.interfaces import get_bind_ip
from psyche.cli.progress import format_progress
from psyche.cli.testnet import parse_numbers
from psyche.errors import ConfigError, DataError, PsycheError
from psyche.wire.crypto import Identity

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_an_error_of_ours_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    result = run("data", "tokenize", str(tmp_path / "missing.txt"), "-o", str(tmp_path / "out.bin"))
    assert result.exit_code == 1
    assert "missing.txt" in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Debug, "on", False)
    result = run("--debug", "data", "tokenize", str(tmp_path / "missing.txt"), "-o", str(tmp_path / "out.bin"))
    assert result.exit_code == 1
    assert "Traceback" in result.output


def test_errors_of_several_tasks_are_said_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("tasks", [DataError("one"), ExceptionGroup("inner", [PsycheError("two"), DataError("one")])])
    assert [str(leaf) for leaf in get_leaves(group)] == ["one", "two", "one"]
    show_errors(group)
    assert capsys.readouterr().err == "error: one\nerror: two\n"


def test_a_defect_of_ours_is_not_hidden() -> None:
    with pytest.raises(ExceptionGroup):
        show_errors(ExceptionGroup("tasks", [DataError("one"), ZeroDivisionError()]))


def test_ctrl_c_within_tasks_is_130() -> None:
    with pytest.raises(typer.Exit) as exit_:
        show_errors(BaseExceptionGroup("tasks", [KeyboardInterrupt(), DataError("one")]))
    assert exit_.value.exit_code == 130


def test_text_becomes_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    result = run("data", "tokenize", str(tmp_path / "a.txt"), "-o", str(tmp_path / "data" / "train.bin"))
    assert result.exit_code == 0
    assert "6 tokens of 2 bytes from 1 documents, vocabulary 256" in result.output
    assert (tmp_path / "data" / "train.bin").stat().st_size == 12


def test_validate_config_names_file_line_and_key(tmp_path: Path) -> None:
    text = (ROOT / "config" / "demo" / "run.toml").read_text().replace("min_clients = 2", "min_clientz = 2")
    (tmp_path / "run.toml").write_text(text)
    result = run("server", "validate-config", "--state", str(tmp_path))
    line = 1 + text.splitlines().index("min_clientz = 2")
    assert result.exit_code == 1
    assert f"run.toml:{line}" in result.output
    assert "min_clients" in result.output


def test_the_sample_of_the_original_documentation_is_valid_but_cannot_run_yet() -> None:
    result = run("server", "validate-config", "--state", str(ROOT / "config" / "sample"))
    assert result.exit_code == 0
    assert "data_location" in result.output
    refused = run("server", "run", "--state", str(ROOT / "config" / "sample"))
    assert refused.exit_code == 1
    assert "Hub" in refused.output


def test_show_identity_prints_the_public_key(tmp_path: Path) -> None:
    key = tmp_path / "my.key"
    missing = run("client", "show-identity", "-i", str(key))
    assert missing.exit_code == 1
    made = run("client", "show-identity", "-i", str(key), "--create")
    assert made.output.strip() == Identity.load(key).public.hex()
    assert key.stat().st_mode & 0o077 == 0
    assert run("client", "show-identity", "-i", str(key)).output == made.output


def test_show_identity_reads_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", "01" * 32)
    assert run("client", "show-identity").output.strip() == Identity(b"\x01" * 32).public.hex()
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", "01")
    result = run("client", "show-identity")
    assert result.exit_code == 1
    assert "RAW_IDENTITY_SECRET_KEY: must be 64 hex digits" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run-id", "demo", "--server-addr", "nowhere"), 'must be "host:port"'),
        (("--run-id", "a/b", "--server-addr", "h:1"), "--data-dir"),
        (("--run-id", "demo", "--server-addr", "h:1", "--server-key", "12"), "64 hex digits"),
        (("--run-id", "demo", "--server-addr", "h:1", "--bind-p2p-interface", "moon9"), "moon9"),
        (("--run-id", "demo", "--server-addr", "h:1", "--log", "loud"), "loud"),
    ],
)
def test_a_client_refuses_what_it_cannot_use(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("client", "train", *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert list(tmp_path.iterdir()) == []


def test_interfaces_are_found_by_name_prefix_or_address() -> None:
    assert get_bind_ip(None) == get_bind_ip("all") == "0.0.0.0"
    assert get_bind_ip("lo") == get_bind_ip("l*") == get_bind_ip("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match="this machine has "):
        get_bind_ip("moon9")


def test_clients_to_kill_are_numbers() -> None:
    assert parse_numbers("1, 3,") == (1, 3)
    with pytest.raises(ConfigError, match="allowed-to-kill"):
        parse_numbers("one")


def test_a_progress_line_says_how_far_and_how_long() -> None:
    assert format_progress("tokenizing", 25, 100, 3.0) == f"tokenizing [{'#' * 7:<30}]  25% 25 B of 100 B, 9 s left"
    assert format_progress("x", 0, 100, 3.0).endswith("0 B of 100 B")


def test_status_of_a_server_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from psyche.server import owner

    async def give_up(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise PsycheError("gave up")

    monkeypatch.setattr(owner, "get_run_status", give_up)
    result = run("server", "status", "--server-addr", "127.0.0.1:1")
    assert result.exit_code == 1
    assert result.output == "error: gave up\n"


def test_pause_needs_a_key() -> None:
    result = run("server", "pause", "--server-addr", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "--state-dir" in result.output


@pytest.mark.e2e
def test_a_server_runs_answers_pauses_resumes_and_leaves_with_ctrl_c(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "psyche", "server", "run", "--state", str(ROOT / "config" / "dummy")]
    command += ["--server-port", str(port), "--bind-ip", "127.0.0.1", "--state-dir", str(tmp_path / "state")]
    owner = ["--server-addr", f"127.0.0.1:{port}", "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "to take part" in line:
                break
        status = run("server", "status", "--server-addr", f"127.0.0.1:{port}", "--json")
        assert json.loads(status.output)["run_state"] == "waiting_for_members"
        assert "paused" in run("server", "pause", *owner).output
        assert "waiting for members" in run("server", "resume", *owner).output
        server.send_signal(signal.SIGINT)
        server.stderr.read()
        assert server.wait(30) == 0


def test_doctor_reports_as_json_and_fails_where_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        lambda: checks.Check("python", checks.Verdict.OK, "3.11"),
        lambda: checks.Check("clock", checks.Verdict.WARN, "adrift", "set it"),
    ]
    monkeypatch.setattr(checks, "get_checks", lambda *_: made)
    result = run("doctor", "--json")
    assert result.exit_code == 0
    assert [check["verdict"] for check in json.loads(result.output)] == ["ok", "warn"]
    made.append(lambda: checks.Check("disk", checks.Verdict.FAIL, "full", "make room"))
    failed = run("doctor")
    assert failed.exit_code == 1
    assert "-> make room" in failed.output


def test_every_check_but_the_heavy_ones_runs_here(tmp_path: Path) -> None:
    heavy = (checks.check_torch, checks.check_libp2p)
    found = [check() for check in checks.get_checks(tmp_path / "not" / "made", 0) if check not in heavy]
    assert [check.name for check in found] == [
        "python",
        "packages",
        "machine",
        "clock",
        "disk",
        "files",
        "ports",
        "network",
    ]
    assert [check.name for check in found if check.verdict is checks.Verdict.FAIL] == []


def test_a_port_in_use_fails_the_check() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        check = checks.check_port(taken.getsockname()[1])
    assert check.verdict is checks.Verdict.FAIL
    assert "--bind-p2p-port" in check.advice


def test_a_clock_that_was_never_set_fails() -> None:
    assert checks.check_clock(lambda: 0.0).verdict is checks.Verdict.FAIL


def test_a_library_that_cannot_be_loaded_fails_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TORCH_PROBE", "raise ImportError('libcuda is broken')")
    check = checks.check_torch()
    assert check.verdict is checks.Verdict.FAIL
    assert "libcuda is broken" in check.found
    monkeypatch.setattr(checks, "LIBP2P_PROBE", "import os; os._exit(7)")
    assert checks.check_libp2p().found == "ended with exit code 7"


def test_a_gpu_that_torch_cannot_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"version": "2", "threads": 2, "device": "cpu", "memory": 0, "count": 0}
    monkeypatch.setattr(checks, "TORCH_PROBE", f"import json; print(json.dumps({facts!r}))")
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidia0" or exists(path))
    assert checks.check_torch().verdict is checks.Verdict.WARN


def test_a_folder_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert checks.check_disk(tmp_path).verdict is checks.Verdict.FAIL
