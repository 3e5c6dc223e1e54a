"""A command has one backend, and the wallet that its person means."""

import json
import shutil
from pathlib import Path

import pytest
from solders.keypair import Keypair
from typer.testing import CliRunner

from psyche.backends.port import TargetOptions
from psyche.backends.solana.cluster import CLI_CONFIG
from psyche.backends.solana.target import SolanaTarget
from psyche.backends.solana.wallet import find_wallet
from psyche.backends.target import parse_chain, parse_target
from psyche.backends.tcp.target import ServerTarget
from psyche.cli.app import app
from psyche.cli.helpers.errors import explain_missing
from psyche.errors import ConfigError
from psyche.testnet.free_port import choose_port

DEMO = Path(__file__).parents[2] / "config" / "demo-solana"
FIRST, SECOND, THIRD = (Keypair.from_seed(bytes([number]) * 32) for number in (1, 2, 3))


@pytest.fixture(autouse=True)
def _only_this_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "RPC",
        "SERVER_ADDR",
        "ANCHOR_PROVIDER_URL",
        "RAW_WALLET_PRIVATE_KEY",
        "WALLET_PRIVATE_KEY_PATH",
        "ANCHOR_WALLET",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def put(path: Path, wallet: Keypair) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*bytes(wallet)]))
    return path


def test_a_command_takes_a_server_or_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(server: str | None, rpc: str | None) -> type:
        return type(parse_target(TargetOptions(server_addr=server, rpc=rpc)))

    assert parse("a:1", None) is ServerTarget
    assert parse(None, "localhost") is SolanaTarget
    for pair in ((None, None), ("", ""), ("a:1", "localhost")):
        with pytest.raises(ConfigError, match=r"--server-addr.*--rpc"):
            parse(*pair)
    monkeypatch.setenv("RPC", "localhost")
    assert parse("a:1", "localhost") is ServerTarget
    monkeypatch.setenv("SERVER_ADDR", "b:1")
    assert parse("b:1", "devnet") is SolanaTarget
    with pytest.raises(ConfigError, match="unset"):
        parse("b:1", "localhost")


def test_the_raw_wallet_wins_then_the_option_then_the_environment_then_the_solana_cli(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no wallet"):
        find_wallet(None)
    config = CLI_CONFIG.expanduser()
    config.parent.mkdir(parents=True)
    config.write_text(f"keypair_path: {put(tmp_path / 'cli.json', THIRD)}\n")
    assert find_wallet(None).key == THIRD
    monkeypatch.setenv("ANCHOR_WALLET", str(put(tmp_path / "anchor.json", SECOND)))
    assert find_wallet(None).key == SECOND
    named = put(tmp_path / "named.json", FIRST)
    assert find_wallet(named) == (FIRST, "")
    monkeypatch.setenv("RAW_WALLET_PRIVATE_KEY", str([*bytes(THIRD)]))
    wallet = find_wallet(named)
    assert wallet.key == THIRD
    assert "named.json is not used" in wallet.note


def test_the_chain_is_named_by_options_then_the_environment_then_the_solana_cli(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConfigError, match="--rpc URL"):
        parse_chain(TargetOptions())
    config = CLI_CONFIG.expanduser()
    config.parent.mkdir(parents=True)
    config.write_text("json_rpc_url: https://cli.example\n")
    assert [one.name for one in parse_chain(TargetOptions()).endpoints] == ["cli.example"]
    monkeypatch.setenv("ANCHOR_PROVIDER_URL", "https://anchor.example")
    assert [one.name for one in parse_chain(TargetOptions()).endpoints] == ["anchor.example"]
    monkeypatch.setenv("RPC", "https://variable.example")
    assert [one.name for one in parse_chain(TargetOptions()).endpoints] == ["variable.example"]
    found = parse_chain(TargetOptions(rpc="http://a:1", ws_rpc="ws://b", rpc_3="http://c")).endpoints
    assert [(one.http, one.ws) for one in found] == [("http://a:1", "ws://b"), ("http://c", "ws://c")]


@pytest.mark.parametrize(
    "command",
    [
        "run list", "run info -r x", "run pause -r x -w wallet.json", "run create --state my-run -w wallet.json",
        "auth read --join-authority {key}", "rewards close -w wallet.json", "client train --run-id x -w wallet.json",
    ],
)  # fmt: skip
def test_a_dead_address_of_this_machine_is_told_with_what_starts_a_chain_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psyche.backends.solana.rpc.client.FIRST_WAIT_S", 0.0)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, tmp_path / "my-run")
    put(tmp_path / "wallet.json", FIRST)
    port = choose_port()
    words = command.format(key=FIRST.pubkey()).split()
    done = CliRunner().invoke(app, [*words, "--rpc", f"http://localhost:{port}"])
    assert done.exit_code == 1
    assert f"error: nothing listens at localhost:{port}: `psyche dev validator --port {port}` starts" in done.output


def test_a_missing_package_of_the_chain_is_named_with_the_line_that_installs_it() -> None:
    error = explain_missing(ModuleNotFoundError("No module named 'solders'", name="solders.keypair"))
    assert "needs solders" in str(error)
    assert "install" in str(error)
