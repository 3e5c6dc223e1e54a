"""`--tui`, `--logs tui` and `--tmux` of what trains, on a real pseudo-terminal."""

import signal
from pathlib import Path

import pytest
from kits.run_files import write_model, write_run
from kits.testnet import call_testnet
from typer.testing import CliRunner
from watch.terminal_kit import open_terminal
from watch.test_screen import ROOT, run_server

from psyche.cli.app import app

DUMMY = ROOT / "config" / "dummy"


@pytest.mark.whole
def test_a_server_shows_its_run_pauses_it_and_goes_on_when_the_screen_is_left(tmp_path: Path) -> None:
    words = ("server", "run", "--state", str(DUMMY), "--state-dir", str(tmp_path / "server"), "--bind-ip", "127.0.0.1")
    with open_terminal(*words, "--tui") as terminal:
        after = terminal.wait_for("Pause/resume")
        after = terminal.wait_for("learning rate", after=after)
        terminal.type("p")
        after = terminal.wait_for("Pause the run?", after=after)
        terminal.type("y")
        after = terminal.wait_for("the run is paused", after=after)
        terminal.type("q")
        terminal.wait_for("server_listening", "goes on with `psyche run resume`", after=after)
        assert terminal.is_restored
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait_end() == 0


@pytest.mark.whole
def test_ctrl_c_in_a_client_s_screen_ends_the_client(tmp_path: Path) -> None:
    run = write_run(tmp_path / "config", write_model(tmp_path / "model"))
    with run_server(tmp_path / "server", run) as options:
        words = ("client", "train", "--run-id", "e2e", *options[:2], "--data-dir", str(tmp_path / "ada"))
        with open_terminal(*words, "--local-root", str(run), "--logs", "tui") as terminal:
            terminal.wait_for("Members", "waits for 2 more members")
            terminal.type("\x03")
            assert terminal.wait_end() == 130
            assert terminal.is_restored


@pytest.mark.whole
@pytest.mark.parametrize("option", ["--tui", "--tmux"])
def test_a_testnet_shows_its_nodes_and_ends_with_ctrl_c(tmp_path: Path, option: str) -> None:
    run = write_run(tmp_path / "config", write_model(tmp_path / "model"), init_min_clients=2)
    words = ("local-testnet", "start", "--num-clients", "2", "--config-path", str(run), "--no-sample")
    folders = ("--run-dir", str(tmp_path / "run"), "--cache-dir", str(tmp_path / "cache"))
    with open_terminal(*words, *folders, option, columns=120, rows=40) as terminal:
        if option == "--tui":
            terminal.wait_for("Pause/resume", "learning rate")
        else:
            terminal.wait_for('"server"', '"client-1"', '"client-2"', "Ctrl-C ends the testnet")
        terminal.type("\x03")
        assert terminal.wait_end() == 130
        assert terminal.is_restored
        assert "logs and events of this run" in terminal.text


@pytest.mark.whole
def test_a_testnet_without_a_terminal_prints_lines_tells_its_page_and_keeps_updates(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "config", write_model(tmp_path / "model"), init_min_clients=2)
    words = ("--num-clients", "2", "--tui", "--web", "0", "--optim-stats", "4", "--write-distro-data")
    with call_testnet(tmp_path / "testnet", run, *words, has_own_host=False) as testnet:
        assert testnet.wait() == 0
        assert "there is no terminal for a screen" in testnet.output.read_text()
        assert "page: http://127.0.0.1:" in testnet.output.read_text()
        assert "--play" in testnet.output.read_text()
        measured = [line for line in testnet.read("client-1") if line["kind"] == "tensor_measured"]
        assert {line["step"] for line in measured} == {4, 8, 12}
        assert len({line["name"] for line in measured}) * 3 == len(measured)
        update = min((testnet.folder / "client-1" / "distro").glob("*.distro"))
        shown = CliRunner().invoke(app, ["distro", "show", str(update)])
        assert shown.exit_code == 0, shown.output
        assert {line["name"] for line in measured} == {row.split()[0] for row in shown.stdout.splitlines()[1:]}
