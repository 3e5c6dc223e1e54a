"""What the commands do and how they fail: one clear message, a documented exit code."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import typer
from kits.commands import call, refuse, run
from kits.log import make

from psyche.analysis.run_view import RunView
from psyche.cli.commands.client import get_bind_ip
from psyche.cli.commands.model import format_sample
from psyche.cli.commands.testnet import parse_numbers
from psyche.cli.commands.train import check_out
from psyche.cli.helpers import checks
from psyche.cli.helpers.errors import Debug, show_errors
from psyche.cli.helpers.progress import format_progress
from psyche.cli.helpers.serving import ServerView, leaving_nothing_unless_started
from psyche.core.rules.apply import apply
from psyche.core.state.genesis import create_run
from psyche.core.state.messages import Join, Pause
from psyche.core.state.state import ZERO32, Metadata, RunState
from psyche.data.bytes_tokenizer import get_tokenizer_files
from psyche.errors import BackendError, ChainReplaced, ConfigError, DataError, PsycheError, RunClosed, VersionMismatch
from psyche.server.journal.disk import FolderDisk
from psyche.telemetry import types
from psyche.telemetry.console import CLEAR_LINE, Console
from psyche.telemetry.events import EventLog
from psyche.telemetry.loading import loading
from psyche.telemetry.run_line import format_members
from psyche.testing.builders import build_config, build_model
from psyche.testnet.free_port import choose_port
from psyche.watch.page import format_line
from psyche.wire.access import MAX_KEYS
from psyche.wire.backend import RunStatus
from psyche.wire.crypto import Identity
from psyche.wire.key_file import make_identity, read_key_file, write_key_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("error", [VersionMismatch("x"), RunClosed("x"), ChainReplaced("x")])
def test_errors_with_an_exit_code_of_their_own_end_the_process_with_it(error: PsycheError) -> None:
    with pytest.raises(typer.Exit) as exit_:
        show_errors(BaseExceptionGroup("", [BackendError("y"), error]))
    assert exit_.value.exit_code == error.exit_code > 1


def test_an_error_of_ours_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    result = refuse("data", "tokenize", tmp_path / "missing.txt", "-o", tmp_path / "out.bin")
    assert "missing.txt" in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Debug, "on", False)
    result = refuse("--debug", "data", "tokenize", tmp_path / "missing.txt", "-o", tmp_path / "out.bin")
    assert "Traceback" in result.output


def test_errors_of_several_tasks_are_said_once_each_and_a_defect_or_ctrl_c_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = ExceptionGroup("tasks", [DataError("one"), ExceptionGroup("inner", [PsycheError("two"), DataError("one")])])
    show_errors(group)
    assert capsys.readouterr().err == "error: one\nerror: two\n"
    with pytest.raises(ExceptionGroup):
        show_errors(ExceptionGroup("tasks", [DataError("one"), ZeroDivisionError()]))
    with pytest.raises(typer.Exit) as exit_:
        show_errors(BaseExceptionGroup("tasks", [KeyboardInterrupt(), DataError("one")]))
    assert exit_.value.exit_code == 130


def test_ctrl_c_at_a_question_is_130_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("psyche.cli.helpers.interview.is_terminal", lambda: True)
    monkeypatch.setattr(typer, "prompt", interrupt)
    result = run("init", tmp_path / "first")
    assert (result.exit_code, result.output) == (130, "\nStopped; nothing was changed.\n")
    assert not (tmp_path / "first").exists()


def test_text_becomes_tokens(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    result = call("data", "tokenize", tmp_path / "a.txt", "-o", tmp_path / "data" / "train.bin")
    assert "6 tokens of 2 bytes from 1 document, vocabulary 256" in result.output
    assert (tmp_path / "data" / "train.bin").stat().st_size == 12


def test_validate_config_names_file_line_and_key(tmp_path: Path) -> None:
    text = (ROOT / "config" / "demo" / "run.toml").read_text().replace("min_clients = 2", "min_clientz = 2")
    (tmp_path / "run.toml").write_text(text)
    result = run("server", "validate-config", "--state", tmp_path)
    line = 1 + text.splitlines().index("min_clientz = 2")
    assert result.exit_code == 1
    assert f"run.toml:{line}" in result.output
    assert "min_clients" in result.output


def test_show_identity_prints_the_public_key(tmp_path: Path) -> None:
    key = tmp_path / "my.key"
    missing = refuse("client", "show-identity", "-i", key)
    assert f"`psyche client show-identity --identity-secret-key-path {key} --create`" in missing.output
    made = run("client", "show-identity", "-i", key, "--create")
    assert made.output.strip() == read_key_file(key).public.hex()
    assert key.stat().st_mode & 0o077 == 0
    assert run("client", "show-identity", "-i", key).output == made.output


def test_show_identity_reads_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", "01" * 32)
    assert run("client", "show-identity").output.strip() == Identity(b"\x01" * 32).public.hex()
    monkeypatch.setenv("RAW_IDENTITY_SECRET_KEY", "01")
    assert "RAW_IDENTITY_SECRET_KEY: must be 64 hex digits" in refuse("client", "show-identity").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--run-id", "a/b", "--server-addr", "h:1"), "--data-dir"),
        (("--run-id", "demo", "--server-addr", "h:1", "--server-key", "12"), "64 hex digits"),
        (("--run-id", "demo", "--server-addr", "h:1", "--bind-p2p-interface", "moon9"), "moon9"),
        (("--run-id", "demo", "--server-addr", "h:1", "--bootstrap", "h:2"), "--bootstrap 'h:2': must be like /ip4/"),
        (("--run-id", "demo", "--server-addr", "h:1", *("--bootstrap", "h:2") * 33), "33 addresses, at most 32"),
        (("--run-id", "demo", "--server-addr", "h:1", "--log", "loud"), "loud"),
        (("--run-id", "demo", "--eval-tasks", "piqa,mmlu_pro"), "--eval-tasks: mmlu_pro is written, not chosen"),
        (("--run-id", "demo", "--eval-tasks", "chess"), "--eval-tasks"),
    ],
)
def test_a_client_refuses_what_it_cannot_use(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refuse("client", "train", *arguments).output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("client", "train", "--run-id", "demo"), ("run", "info"), ("run", "pause")])
def test_what_is_no_server_s_address_is_refused_at_once(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("http://192.0.2.7:19400", "tcp://h:1", "h:1/", "h", "h:", ":1", "h:0", "h:65536", "h 2:1", "a@h:1"):
        result = refuse(*command, "--server-addr", address)
        assert result.output.startswith(f"error: --server-addr {address!r}: must be HOST:PORT")
    assert "leave out what is before //" in run(*command, "--server-addr", "http://192.0.2.7:19400").output
    monkeypatch.setenv("SERVER_ADDR", "https://h")
    assert "--server-addr 'https://h'" in run(*command).output
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
    from psyche.backends.tcp.owner import TcpAdministration

    async def give_up(*_: object, **__: object) -> None:
        await trio.lowlevel.checkpoint()
        raise PsycheError("gave up")

    monkeypatch.setattr(TcpAdministration, "get_status", give_up)
    assert refuse("run", "info", "--server-addr", "127.0.0.1:1").output == "error: gave up\n"


def test_pause_needs_a_key(tmp_path: Path) -> None:
    result = refuse("run", "pause", "--server-addr", "127.0.0.1:1")
    assert "--state-dir" in result.output
    result = refuse("run", "pause", "--server-addr", "127.0.0.1:1", "--state-dir", tmp_path)
    assert f"no key {tmp_path / 'server.key'}: --state-dir must be the state folder of the server" in result.output
    assert list(tmp_path.iterdir()) == []


def test_rates_need_a_number_that_the_record_can_hold() -> None:
    command = ("run", "set-future-epoch-rates", "--server-addr", "127.0.0.1:1", "--state-dir", "state")
    assert "name a rate: --earning-rate-total-shared, --slashing-rate-per-client, or both" in refuse(*command).output
    refuse(*command, "--earning-rate-total-shared", "-1")
    refuse(*command, "--slashing-rate-per-client", str(2**63))


def test_a_server_that_cannot_start_leaves_nothing_and_says_one_thing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ["--state", str(ROOT / "config" / "dummy"), "--bind-ip", "127.0.0.1", "--server-port", port]
        arguments += ["--state-dir", str(tmp_path / "new" / "state"), "--events-dir", str(tmp_path / "events")]
        result = run("server", "run", *arguments)
    assert result.exit_code == 1
    assert f"error: server: cannot listen on 127.0.0.1:{port}" in result.output
    assert "epoch" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_allow_takes_no_key_of_nobody_and_no_more_than_a_list_has_room_for(tmp_path: Path) -> None:
    for name in ("run.toml", "data.toml"):
        text = (ROOT / "config" / "demo" / name).read_text()
        (tmp_path / name).write_text(text)
    (tmp_path / "standard-library").mkdir()
    (tmp_path / "standard-library" / "tokens.bin").write_bytes(bytes(512))
    state = ("--state", str(tmp_path), "--state-dir", str(tmp_path / "state"))
    assert "--allow: the key of zeros belongs to nobody" in refuse("server", "run", *state, "--allow", "00" * 32).output
    keys = ", ".join(f'"{number:064x}"' for number in range(1, MAX_KEYS + 1))
    (tmp_path / "run.toml").write_text(f"{(tmp_path / 'run.toml').read_text()}\n[access]\nallow = [{keys}]\n")
    full = refuse("server", "run", *state, "--allow", "ab" * 32)
    assert "--allow: with those of the run's file 4,097 keys, at most 4,096" in full.output


def test_a_server_that_cannot_start_leaves_what_was_there_or_what_another_has_taken(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "mine").touch()
    with leaving_nothing_unless_started(tmp_path / "state", tmp_path / "events"):
        (tmp_path / "events").mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    with leaving_nothing_unless_started(tmp_path / "other") as on_start:
        (tmp_path / "other").mkdir()
        on_start()
    with leaving_nothing_unless_started(tmp_path / "taken"):
        disk = FolderDisk(tmp_path / "taken")
    assert {path.name for path in tmp_path.iterdir()} == {"state", "other", "taken"}
    disk.close()


def make_server_view(*, live: bool) -> tuple[ServerView, EventLog, io.StringIO, list[float]]:
    stream, clock, log = io.StringIO(), [1_000.0], EventLog(None, node="server")
    return ServerView(Console(stream, live=live), log, now=lambda: clock[0]), log, stream, clock


def test_the_server_s_line_shows_its_state_at_once_and_when_it_changes() -> None:
    view, _, stream, clock = make_server_view(live=False)
    view.refresh()
    assert stream.getvalue() == ""
    state = create_run(
        build_config(init_min_clients=2, min_clients=1, total_steps=9), build_model(), "r", b"r" * 32, Metadata(), "x",
        990,
    )  # fmt: skip
    view.take(state)
    assert stream.getvalue().endswith(
        "  r: epoch 0 step 1 of 9 | waiting for members for 10 s | 0 clients wait, 2 are needed to start\n"
    )
    for _ in range(100):
        view.refresh()
    apply(state, 995, 0, b"\1" * 32, Join(b"\1" * 32))
    view.take(state)
    (line,) = stream.getvalue().splitlines()[1:]
    assert line.endswith("waiting for members for 10 s | 1 client waits, 2 are needed to start")
    apply(state, 999, 0, ZERO32, Pause())
    view.take(state)
    clock[0] += 60
    view.refresh()
    (line,) = stream.getvalue().splitlines()[2:]
    assert line.endswith("  r: epoch 0 step 1 of 9 | paused for 1 s | goes on with `psyche run resume`")
    view.close()


def test_a_server_s_terminal_shows_its_course_and_who_reports_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    view, log, stream, _ = make_server_view(live=True)
    view.take(create_run(build_config(total_steps=9), build_model(), "r", b"r" * 32, Metadata(), "x", 990))
    log.emit(make(types.RoundOver, step=2, loss=3.25, tokens_per_s=1_234.0, total_steps=9, unix=999))
    log.emit(types.ErrorReported(key=b"k" * 32, name="ada", phase="training", error="no room on the disk"))
    view.refresh()
    shown = stream.getvalue().split(CLEAR_LINE)[-1]
    assert ", loss 3.250, 1.2k tok/s\n" in shown
    assert "! ada reports an error for " in shown
    assert ": no room on the disk\n" in shown
    assert stream.getvalue().count("reports an error: ") == 0, "log lines say it"


def test_the_server_s_line_counts_the_healthy_members_of_the_epoch() -> None:
    fields: dict[str, Any] = {
        "run_id": "r", "run_uid": bytes(32), "program": "", "now_unix": 100, "nonce": 1,
        "run_state": int(RunState.ROUND_TRAIN), "state_start_unix": 98, "pending_pause": True, "epoch": 3, "height": 5,
        "step": 31, "total_steps": 161, "healthy": 2, "members": 3, "waiting": 1, "min_clients": 1,
        "init_min_clients": 2, "connections": 4,
    }  # fmt: skip
    view = RunView()
    view.take_status(RunStatus(**fields))
    assert format_line(view, 100.0) == (
        "r: epoch 3 round 5 step 31 of 161 | training for 2 s | 2 of 3 members healthy,"
        " 1 client waits for the next epoch | pauses at the end of this epoch"
    )
    one = RunStatus(**{**fields, "healthy": 1, "members": 1, "waiting": 0})
    assert format_members(one) == "1 of 1 member healthy"
    over = RunStatus(**{**fields, "members": 0, "run_state": int(RunState.FINISHED)})
    assert format_members(over) == "no epoch follows"


def test_out_replaces_nothing_that_it_was_not_told_to(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    arguments = ["train", "--model", str(tmp_path / "m.json"), "--data", str(tmp_path / "t.bin")]
    for name in ("model", "new"):
        check_out(tmp_path / name, force=False)
    (tmp_path / "model" / "config.json").touch()
    check_out(tmp_path / "model", force=True)
    refused = refuse(*arguments, "--out", tmp_path / "model")
    assert "replace it with --force" in refused.output
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "precious").touch()
    refused = refuse(*arguments, "--out", tmp_path / "notes", "--force")
    assert "holds something that is not a model" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--model", "no.json", "--data", "."), "error: --model no.json: there is no such file or folder\n"),
        (("train", "--model", ".", "--data", "no.bin"), "error: --data no.bin: there is no such file or folder\n"),
        (("model", "init", "--config", "no.json", "-o", "out"), "error: --config no.json: there is no such file or"),
        (("model", "sample", "."), "error: .: no config.json there; name a model's folder"),
    ],
)
def test_what_is_not_there_is_said_before_torch_is_loaded(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refuse(*arguments).output.startswith(message)


def test_a_sample_tells_the_prompt_from_what_the_model_wrote() -> None:
    sample: Any = SimpleNamespace(prompt="def ", written="main():\n    pass")
    assert format_sample(sample) == "--- prompt\ndef \n--- the model goes on\nmain():\n    pass"


def test_loading_is_announced_and_ctrl_c_ends_it_at_once_whatever_the_library_does() -> None:
    program = (
        "import os, signal, time\nfrom psyche.telemetry.loading import loading\n"
        "with loading('torch'):\n    try:\n        os.kill(os.getpid(), signal.SIGINT)\n        time.sleep(600)\n"
        "    except BaseException:\n        print('swallowed')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "loading torch ...\n")


def test_after_loading_ctrl_c_is_what_it_was() -> None:
    former = signal.getsignal(signal.SIGINT)
    with loading("torch"):
        assert signal.getsignal(signal.SIGINT) is not former
    assert signal.getsignal(signal.SIGINT) is former


@pytest.mark.e2e
def test_a_server_runs_answers_pauses_resumes_and_leaves_with_ctrl_c(tmp_path: Path) -> None:
    port = choose_port()
    command = [sys.executable, "-m", "psyche", "server", "run", "--state", str(ROOT / "config" / "dummy")]
    command += ["--server-port", str(port), "--bind-ip", "127.0.0.1", "--state-dir", str(tmp_path / "state")]
    owner = ["--server-addr", f"127.0.0.1:{port}", "--state-dir", str(tmp_path / "state")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, ExitStack() as stack:
        stack.callback(server.kill)
        assert server.stderr is not None
        for line in server.stderr:
            if "to take part" in line:
                break
        status = run("run", "info", "--server-addr", f"127.0.0.1:{port}", "--json")
        assert json.loads(status.output)["run_state"] == "waiting_for_members"
        asked = ("run", "info", "--server-addr", f"127.0.0.1:{port}", "--server-key")
        assert (
            "waiting for members" in run(*asked, read_key_file(tmp_path / "state" / "server.key").public.hex()).output
        )
        assert "another server answers at this address" in refuse(*asked, "ab" * 32).output
        wrong = refuse(
            "client", "train", "--run-id", "x", "--server-addr", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "c")
        )
        assert wrong.output == "error: this server has run 'dummy', not 'x'\n"
        assert not (tmp_path / "c").exists()
        rates = ("--earning-rate-total-shared", "1000", "--slashing-rate-per-client", "7")
        paid = run("run", "set-future-epoch-rates", *owner, *rates)
        assert "pays 1,000 for all its credits; an ejected member loses 7" in paid.output
        nothing = run("run", "collect", "--all", *owner)
        assert (nothing.exit_code, nothing.output) == (0, "all earnings are collected already\n")
        assert run("run", "collect", *owner).output == "error: name a KEY, or --all\n"
        assert "paused" in run("run", "pause", *owner).output
        assert "waiting for members" in run("run", "resume", *owner).output
        server.send_signal(signal.SIGINT)
        server.stderr.read()
        assert server.wait() == 0


def test_doctor_reports_as_json_and_fails_where_a_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        lambda: checks.Check("python", checks.CheckVerdict.OK, "3.11"),
        lambda: checks.Check("clock", checks.CheckVerdict.WARN, "adrift", "set it"),
    ]
    monkeypatch.setattr(checks, "get_checks", lambda *_, **__: made)
    assert [check["verdict"] for check in json.loads(call("doctor", "--json").output)] == ["ok", "warn"]
    made.append(lambda: checks.Check("disk", checks.CheckVerdict.FAIL, "full", "make room"))
    assert "-> make room" in refuse("doctor").output


def test_every_check_but_the_heavy_ones_runs_here(tmp_path: Path) -> None:
    heavy = (checks.check_torch, checks.check_libp2p)
    found = [check() for check in checks.get_checks(tmp_path / "not" / "made", 0) if check not in heavy]
    names = ["python", "packages", "machine", "clock", "disk", "files", "ports", "network"]
    assert [check.name for check in found] == names
    assert [check.name for check in found if check.verdict is checks.CheckVerdict.FAIL] == []
    assert not {*heavy} & {*checks.get_checks(tmp_path, 0, is_server=True)}


def test_doctor_names_whose_calibration_was_off_in_the_last_epoch_of_a_client_s_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, node="ada")
    log.emit(types.ClientStarted(identity=bytes(range(32)), run_id="r", pid=1))
    log.emit(types.ArithmeticOff(member=3, key="f" * 16, epoch=1, distance=0.1))
    log.emit(types.StateChanged(epoch=2, height=0, run_state=RunState.ROUND_TRAIN, step=9, members=4))
    assert checks.check_arithmetic(path).verdict is checks.CheckVerdict.OK, "that was an epoch ago"
    log.emit(types.ArithmeticOff(member=3, key="f" * 16, epoch=2, distance=0.1))
    found = checks.check_arithmetic(path)
    assert found.verdict is checks.CheckVerdict.WARN
    assert "member 3 (ffffffff) by 1.0e-01" in found.found
    log.emit(types.ArithmeticOff(member=0, key=bytes(range(8)).hex(), epoch=2, distance=0.05))
    found = checks.check_arithmetic(path)
    log.close()
    assert found.verdict is checks.CheckVerdict.FAIL
    assert "member 0 (00010203) by 5.0e-02" in found.found
    assert "test its memory" in found.advice
    made = {check().name for check in checks.get_checks(tmp_path, 0, is_server=True)}
    assert "sums" in made, "its data folder is enough"


def test_a_port_in_use_a_clock_that_was_never_set_and_a_folder_that_cannot_be_written_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        check = checks.check_port(taken.getsockname()[1])
    assert "--bind-p2p-port" in check.advice
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = (check, checks.check_clock(lambda: 0.0), checks.check_disk(tmp_path))
    assert {one.verdict for one in found} == {checks.CheckVerdict.FAIL}


def test_a_library_that_cannot_be_loaded_or_used_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "TORCH_PROBE", "raise ImportError('libcuda is broken')")
    check = checks.check_torch()
    assert check.verdict is checks.CheckVerdict.FAIL
    assert "libcuda is broken" in check.found
    monkeypatch.setattr(checks, "LIBP2P_PROBE", "import os; os._exit(7)")
    assert checks.check_libp2p().found == "ended with exit code 7"
    facts = {"version": "2", "threads": 2, "device": "cpu", "memory": 0, "count": 0}
    monkeypatch.setattr(checks, "TORCH_PROBE", f"import json; print(json.dumps({facts!r}))")
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == "/dev/nvidia0" or exists(path))
    assert checks.check_torch().verdict is checks.CheckVerdict.WARN, "a GPU that torch cannot use"


def test_a_tokenizer_whose_file_no_run_would_keep_is_refused(tmp_path: Path) -> None:
    """S9: the small files of a model have fixed names."""
    for name in ("mine.json", "tokenizer.json", "chat_template.jinja", "config.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=r"mine\.json: a run keeps only .*tokenizer\.json.*; rename the file"):
        get_tokenizer_files(tmp_path / "mine.json", tmp_path)
    assert get_tokenizer_files(tmp_path / "tokenizer.json", tmp_path) == [tmp_path / "tokenizer.json"]
    found = get_tokenizer_files(tmp_path, tmp_path)
    assert [path.name for path in found] == ["chat_template.jinja", "tokenizer.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="there"):
        get_tokenizer_files(tmp_path / "empty", tmp_path)


@pytest.mark.parametrize("words", [["pause"], ["info"], ["info", "--watch"]], ids=" ".join)
def test_an_owner_whose_command_names_no_server_key_is_warned(words: list[str], tmp_path: Path) -> None:  # K6
    write_key_file(tmp_path / "owner.key", make_identity())
    where = ["--server-addr", f"127.0.0.1:{choose_port()}", "--timeout", "0.2"]
    warning = "the server's identity cannot be checked"
    assert warning in refuse("run", *words, *where, "-i", tmp_path / "owner.key").output
    known = ["--server-key", "11" * 32]
    assert warning not in refuse("run", *words, *where, *known, "-i", tmp_path / "owner.key").output
