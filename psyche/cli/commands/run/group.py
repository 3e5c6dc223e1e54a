"""The group `psyche run`, and the options that its commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from psyche.cli.helpers import chain
from psyche.cli.helpers import options as opt
from psyche.cli.helpers.common import format_examples, make_group
from psyche.cli.helpers.owners import Owner


def check_address(text: str | None) -> str | None:
    return opt.check_server_addr(text) if text else None


ADDRESS = "--server-addr 127.0.0.1:19400"  # in examples
OWNED = f"{ADDRESS} --state-dir server"
WALLET = "4vJ9JU1bJJE96FWSJKvHsmmFADCg4gpZQff4P3bkLKi"  # in examples
ON_CHAIN = "--run-id my-run --rpc localhost"
group = make_group(
    "Own a run: watch, pause, change and extend it.\n\n"
    "A run is on a server (--server-addr) or on Solana (--rpc and --run-id). Anybody may ask for `info`. On a server, "
    "the other commands need an owner's key: that of the server, in its state folder (--state-dir), or one that "
    "`psyche server run --owner` names (--identity-secret-key-path). On Solana they need the owner's wallet "
    "(--wallet-private-key-path), and say what they cost.",
    f"psyche run info {ADDRESS}",
    f"psyche run pause {OWNED}",
    f"psyche run resume {OWNED}",
    "psyche run create --state my-run --rpc localhost",
    f"psyche run info {ON_CHAIN}",
    f"psyche run pause {ON_CHAIN}",
)
ServerAddr = Annotated[
    str | None, typer.Option(envvar="SERVER_ADDR", callback=check_address, help="The run's server, host:port.")
]
RunId = Annotated[
    str, typer.Option("--run-id", "-r", envvar="RUN_ID", help="The run. A server has only one, a chain has many.")
]
TreasurerIndex = Annotated[
    int | None,
    typer.Option(min=0, hidden=True, help="The run's index at the treasurer, which is found without it; checked."),
]
ServerKey = Annotated[
    str | None,
    typer.Option(
        envvar="SERVER_KEY",
        help="The server's public key, 64 hex digits, unless --state-dir holds it; any other server is refused.",
    ),
]
OwnerKey = Annotated[
    Path | None,
    typer.Option(
        "--identity-secret-key-path",
        "-i",
        envvar="IDENTITY_SECRET_KEY_PATH",
        help="File with an owner's secret key, if it is not the server's.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", "--save-state-dir", envvar="STATE_DIR", help="The server's state folder, which holds its key."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to try a server that does not answer.")]


@group.callback()
def _root() -> None:
    pass


OPTIONS: Final[dict[str, tuple[object, object]]] = {  # their types and defaults
    "server_addr": (ServerAddr, None),
    "rpc": (chain.Rpc, None),
    "run_id": (RunId, ""),
    "server_key": (ServerKey, None),
    "identity_secret_key_path": (OwnerKey, None),
    "state_dir": (StateDir, None),
    "wallet_private_key_path": (chain.WalletPath, None),
    "timeout": (Timeout, 10.0),
    "ws_rpc": (chain.WsRpc, None),
    "rpc_2": (chain.Rpc2, None),
    "ws_rpc_2": (chain.WsRpc2, None),
    "rpc_3": (chain.Rpc3, None),
    "ws_rpc_3": (chain.WsRpc3, None),
    "program_ids": (chain.ProgramIds, None),
    "max_priority_fee": (chain.MaxPriorityFee, None),
    "treasurer_index": (TreasurerIndex, None),
    "yes": (chain.Yes, False),
}


def make_owner(given: dict[str, Any]) -> Owner:
    own = {name: given.pop(name) for name in OPTIONS}
    return Owner(chain.take_options(own), own["yes"])


def owner_command(
    name: str, *examples: str, hidden: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:  # typer reads the signature that is set below
            function(owner=make_owner(given), **given)

        chain.set_signature(run, function, OPTIONS, instead_of="owner")
        group.command(name, hidden=hidden, epilog=format_examples(*examples))(run)
        return function

    return register
