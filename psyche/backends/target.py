"""Where a run is: the options of a person, read once, as the target from which everything else follows."""

import os
from typing import TYPE_CHECKING

from psyche.backends.port import Target, TargetOptions
from psyche.errors import ConfigError

if TYPE_CHECKING:
    from psyche.backends.solana.target import SolanaTarget


def parse_target(options: TargetOptions) -> Target:
    """Read where a run is. What the command line names wins over what only the environment names."""
    server, rpc = options.server_addr, options.rpc
    if server and rpc:
        is_server_typed = server != os.environ.get("SERVER_ADDR")
        if is_server_typed == (rpc != os.environ.get("RPC")):
            raise ConfigError(
                "--server-addr and --rpc: a run has one backend; name the one that it has, and unset SERVER_ADDR or "
                "RPC if the environment names the other"
            )
        return _make_server(options) if is_server_typed else parse_chain(options)
    if server:
        return _make_server(options)
    if rpc:
        return parse_chain(options)
    raise ConfigError("name the run's backend: --server-addr HOST:PORT for a server, or --rpc URL for a run on Solana")


def parse_chain(options: TargetOptions) -> "SolanaTarget":
    """Read where a chain is, for what only a chain has."""
    from psyche.backends.solana.target import SolanaTarget  # a server needs no solders

    return SolanaTarget(options)


def _make_server(options: TargetOptions) -> Target:
    from psyche.backends.tcp.target import ServerTarget  # a chain needs no sockets

    return ServerTarget(options)
