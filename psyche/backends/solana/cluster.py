"""Clusters: which RPC endpoints lead to a chain, as flags, variables and Solana's own configuration name them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from psyche.backends.solana.programs.vouching import name_cluster
from psyche.durable import expand_user, read_file
from psyche.errors import ConfigError

CLI_CONFIG: Final = Path("~/.config/solana/cli/config.yml")
LOCAL_HTTP: Final = "http://127.0.0.1:8899"
MONIKERS: Final = {
    "localhost": LOCAL_HTTP,
    "devnet": "https://api.devnet.solana.com",
    "testnet": "https://api.testnet.solana.com",
    "mainnet-beta": "https://api.mainnet-beta.solana.com",
}
_SHORT: Final = {"l": "localhost", "d": "devnet", "t": "testnet", "m": "mainnet-beta"}
_SOCKETS: Final = {"http": "ws", "https": "wss"}
MAX_CLI_CONFIG_BYTES: Final = 1 << 16
MAX_ENDPOINTS: Final = 3


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One RPC endpoint: the addresses of its HTTP and its WebSocket side."""

    http: str
    ws: str

    @property
    def name(self) -> str:
        """Its host and port, for people: the rest of an address may hold a secret key."""
        return urlsplit(self.http).netloc.rpartition("@")[2]

    @property
    def is_here(self) -> bool:
        host = urlsplit(self.http).hostname or ""
        try:
            return host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            return False

    def describe_start(self) -> str:
        """What to do if nothing listens at this address of this machine."""
        port = urlsplit(self.http).port
        is_usual = port == urlsplit(LOCAL_HTTP).port
        command = "psyche dev validator" if port is None or is_usual else f"psyche dev validator --port {port}"
        usual = "" if is_usual else f" (--rpc localhost is {LOCAL_HTTP}, where one listens by default)"
        return (
            f"nothing listens at {self.name}: `{command}` starts a chain of your own there; if one runs already, name "
            f"the address that it printed with --rpc{usual}"
        )


def parse_endpoint(http: str, ws: str = "", *, flag: str = "--rpc") -> Endpoint:
    """Read the addresses of an endpoint: an address, or localhost, devnet, testnet, mainnet-beta (l, d, t, m).

    Without `ws` it is the same host, at the next port if one is written, as Solana's own tools assume.
    """
    http = MONIKERS.get(_SHORT.get(http, http), http)
    parts = _split(http, tuple(_SOCKETS), flag)
    if ws:
        _split(ws, tuple(_SOCKETS.values()), flag.replace("rpc", "ws-rpc"))
        return Endpoint(http, ws)
    host = parts.netloc if parts.port is None else f"{parts.netloc.rpartition(':')[0]}:{parts.port + 1}"
    return Endpoint(http, urlunsplit((_SOCKETS[parts.scheme], host, parts.path, parts.query, "")))


def _split(address: str, schemes: Sequence[str], flag: str) -> Any:
    wanted = f"must be an address as {schemes[0]}://127.0.0.1:8899"
    try:
        parts = urlsplit(address)
        port = parts.port  # refuses what is no number from 0 to 65,535
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}; {wanted}") from None
    if parts.scheme not in schemes or not parts.hostname or port == 0:
        shown = f"{parts.scheme}://..." if parts.scheme else repr(address)  # the rest may hold a secret
        raise ConfigError(f"{flag} {shown}: {wanted}, or one of {', '.join(MONIKERS)}")
    return parts


@dataclass(frozen=True, slots=True)
class CliConfig:
    endpoint: Endpoint
    wallet: Path | None


def read_cli_config(path: Path = CLI_CONFIG) -> CliConfig | None:
    """Read the configuration of Solana's own command line; None if there is none."""
    where = expand_user(path)
    if not where.exists():
        return None
    import yaml  # few have such a file

    try:
        found = yaml.safe_load(read_file(where, MAX_CLI_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{where}: cannot be read as Solana's configuration ({type(error).__name__})") from None
    http, ws, wallet = (_get_text(found, key, where) for key in ("json_rpc_url", "websocket_url", "keypair_path"))
    return CliConfig(
        parse_endpoint(http or LOCAL_HTTP, ws, flag=f"{where}: json_rpc_url"), Path(wallet) if wallet else None
    )


def _get_text(found: Any, key: str, where: Path) -> str:
    value = found.get(key, "") if isinstance(found, dict) else None
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} must be a text")
    return value


def find_endpoints(
    given: Sequence[tuple[str, str]], environment: Mapping[str, str] = os.environ
) -> tuple[Endpoint, ...]:
    """Find the endpoints: `given` as (http, ws) in their order, with RPC, WS_RPC, RPC_2, ... where one is empty.

    If none of these is there: ANCHOR_PROVIDER_URL, then what Solana's own command line is configured for.
    """
    found: list[Endpoint] = []
    for number in range(1, MAX_ENDPOINTS + 1):
        http, ws = given[number - 1] if number <= len(given) else ("", "")
        tail = "" if number == 1 else f"_{number}"
        http, ws = http or environment.get(f"RPC{tail}", ""), ws or environment.get(f"WS_RPC{tail}", "")
        flag = "--rpc" + tail.replace("_", "-")
        if ws and not http:
            raise ConfigError(f"{flag.replace('rpc', 'ws-rpc')}: is of no use without {flag}")
        if http:
            found.append(parse_endpoint(http, ws, flag=flag))
    if found:
        return tuple(dict.fromkeys(found))
    if url := environment.get("ANCHOR_PROVIDER_URL"):
        return (parse_endpoint(url, flag="ANCHOR_PROVIDER_URL"),)
    if config := read_cli_config():
        return (config.endpoint,)
    raise ConfigError(
        "no chain is named: name one of its RPC endpoints with --rpc URL (or RPC in the environment), for example "
        "--rpc localhost or --rpc devnet"
    )


def name_foreign(genesis_hash: str, endpoints: Sequence[Endpoint]) -> str:
    """Name a chain that others share, whose SOL may have a value; empty: a local one, on this machine only."""
    if known := name_cluster(genesis_hash):
        return known
    if all(endpoint.is_here for endpoint in endpoints):
        return ""
    return f"the chain at {endpoints[0].name}"
