"""Which endpoints lead to a chain: addresses, short names, variables and Solana's own configuration."""

from pathlib import Path

import pytest

from psyche.backends.solana.cluster import Endpoint, find_endpoints, parse_endpoint, read_cli_config
from psyche.backends.solana.interface.addresses import get_instance_address
from psyche.errors import ConfigError


@pytest.mark.parametrize(
    ("http", "ws"),
    [
        ("http://127.0.0.1:8899", "ws://127.0.0.1:8900"),
        ("https://rpc.example.org/key?x=1", "wss://rpc.example.org/key?x=1"),
        ("http://[::1]:8899", "ws://[::1]:8900"),
    ],
)
def test_the_socket_of_an_endpoint_follows_from_its_address(http: str, ws: str) -> None:
    assert parse_endpoint(http) == Endpoint(http, ws)


@pytest.mark.parametrize("name", ["l", "localhost"])
def test_short_names_stand_for_addresses(name: str) -> None:
    assert parse_endpoint(name) == Endpoint("http://127.0.0.1:8899", "ws://127.0.0.1:8900")


def test_the_name_of_an_endpoint_holds_no_secret_of_its_address() -> None:
    assert parse_endpoint("https://user:secret@rpc.example.org/secret?key=secret").name == "rpc.example.org"


@pytest.mark.parametrize(
    "text", ["", "rpc.example.org", "ws://a", "http://", "http://a:99999", "http://a:0", "http://[a"]
)
def test_what_is_no_address_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--rpc-2"):
        parse_endpoint(text, flag="--rpc-2")


def test_a_wrong_socket_is_refused_by_its_flag() -> None:
    with pytest.raises(ConfigError, match=r"^--ws-rpc-2 http://\.\.\.: must be an address as ws://"):
        parse_endpoint("http://a", "http://b", flag="--rpc-2")


def test_endpoints_keep_their_order_and_variables_fill_gaps() -> None:
    found = find_endpoints(
        [("http://one", ""), ("", "")], {"RPC": "http://no", "RPC_2": "http://two", "WS_RPC_2": "ws://w"}
    )
    assert found == (Endpoint("http://one", "ws://one"), Endpoint("http://two", "ws://w"))
    with pytest.raises(ConfigError, match="--ws-rpc-3: is of no use without --rpc-3"):
        find_endpoints([], {"WS_RPC_3": "ws://a"})


def test_solanas_own_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    assert read_cli_config(path) is None
    path.write_text(
        '---\njson_rpc_url: "http://h:1"\nwebsocket_url: ""\nkeypair_path: /k/id.json\ncommitment: confirmed\n'
    )
    found = read_cli_config(path)
    assert found is not None
    assert (found.endpoint, found.wallet) == (Endpoint("http://h:1", "ws://h:2"), Path("/k/id.json"))


@pytest.mark.parametrize("text", ["- a", "json_rpc_url: 1", "a: [", "json_rpc_url: ftp://x"])
def test_a_damaged_configuration_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yml"):
        read_cli_config(tmp_path / "config.yml")


@pytest.mark.parametrize("run_id", ["", "a" * 33, "ü" * 17, "a\0b", "\ud800"])
def test_a_run_id_that_no_run_can_have_is_refused_before_the_address_is_derived(run_id: str) -> None:
    with pytest.raises(ConfigError, match="1 to 32 bytes"):
        get_instance_address(run_id)


def test_a_dead_endpoint_of_this_machine_is_told_with_the_address_that_is_usual() -> None:
    usual = parse_endpoint("localhost").describe_start()
    assert "`psyche dev validator` starts a chain" in usual
    other = parse_endpoint("http://[::1]:9001")
    assert other.is_here
    assert "`psyche dev validator --port 9001`" in other.describe_start()
    assert "--rpc localhost is http://127.0.0.1:8899" in other.describe_start()
    assert not parse_endpoint("devnet").is_here
