"""A testnet on a local chain: which commands it starts, and what it refuses."""

from pathlib import Path

import pytest

from psyche.backends.kinds import BackendKind
from psyche.backends.solana.wallet import read_wallet
from psyche.errors import ConfigError
from psyche.localchain.validator import Validator
from psyche.testnet.prepare import prepare
from psyche.testnet.settings import TestnetSettings
from psyche.testnet.supervisor import get_backend_argv, get_client_argv, get_owner_argv

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.fixture
def settings(tmp_path: Path) -> TestnetSettings:
    return TestnetSettings(
        num_clients=3, config_path=CONFIG / "dummy", run_dir=tmp_path / "run", cache_dir=tmp_path / "cache",
        backend=BackendKind.solana, slot_ms=50,
    )  # fmt: skip


async def test_each_client_of_a_chain_has_a_wallet_and_a_port_that_the_record_names(settings: TestnetSettings) -> None:
    prepared = await prepare(settings, lambda _text: None)
    keys = {str(read_wallet(prepared.layout.wallet(number)).pubkey()) for number in (1, 2, 3)}
    assert len(keys | {str(read_wallet(prepared.layout.owner_wallet).pubkey())}) == 4
    first, second, _ = prepared.p2p_ports
    known = [(port, key.hex()) for port, key in zip((first, second), prepared.client_keys, strict=False)]
    assert prepared.run.bootstrap == tuple(f"/ip4/127.0.0.1/tcp/{port}/p2p/{key}" for port, key in known)
    line = " ".join(get_client_argv(prepared, settings, 2))
    assert f"--rpc http://127.0.0.1:{prepared.server_port} --wallet-private-key-path" in line
    assert f"--bind-p2p-port {second} " in line
    assert "--server-addr" not in line
    home = " ".join(get_backend_argv(prepared, settings))
    assert f"dev validator --validator embedded --port {prepared.server_port} --slot-ms 50 --wallet" in home
    owner = " ".join(get_owner_argv(prepared, settings, "pause"))
    assert f"run pause --run-id {prepared.run.run_id} --rpc http://127.0.0.1:{prepared.server_port}" in owner


async def test_joins_are_open_if_the_settings_or_the_file_say_so(settings: TestnetSettings) -> None:
    assert not (await prepare(settings, lambda _text: None)).run.access.is_open
    assert settings.run_dir is not None
    settings.run_dir, settings.open_joins = settings.run_dir.with_name("open"), True
    assert (await prepare(settings, lambda _text: None)).run.access.is_open


async def test_a_real_validator_is_looked_for_before_anything_is_made(
    settings: TestnetSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.validator = Validator.real
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="neither solana-test-validator nor surfpool is on the path"):
        await prepare(settings, lambda _text: None)
    assert not (tmp_path / "run").exists()
    settings.backend = BackendKind.tcp
    with pytest.raises(ConfigError, match="--validator real: needs --backend solana"):
        await prepare(settings, lambda _text: None)


async def test_a_run_whose_data_a_server_would_serve_is_refused_before_anything_is_made(
    settings: TestnetSettings, tmp_path: Path
) -> None:
    settings.config_path = CONFIG / "demo"
    with pytest.raises(ConfigError, match="a chain serves no data"):
        await prepare(settings, lambda _text: None)
    assert not (tmp_path / "run").exists()
