"""The options that name a chain and a wallet, and what they stand for. Needs the extra `solana` for wallets alone."""

import inspect
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS

if TYPE_CHECKING:
    from psyche.backends.solana.cluster import Endpoint
    from psyche.backends.solana.session import Spelling
    from psyche.backends.solana.wallet import Wallet

_SUBSCRIPTIONS: Final = "Default: the next port of the same host."

Rpc = Annotated[
    str | None,
    typer.Option(
        envvar="RPC",
        help="For a run on Solana: an RPC endpoint, http(s)://HOST, or localhost, devnet, testnet, mainnet-beta.",
    ),
]
WsRpc = Annotated[
    str | None, typer.Option(envvar="WS_RPC", help=f"Its address for subscriptions, ws(s)://HOST. {_SUBSCRIPTIONS}")
]
Rpc2 = Annotated[str | None, typer.Option("--rpc-2", envvar="RPC_2", help="A second endpoint of the same chain.")]
WsRpc2 = Annotated[str | None, typer.Option("--ws-rpc-2", envvar="WS_RPC_2", help="Its address for subscriptions.")]
Rpc3 = Annotated[str | None, typer.Option("--rpc-3", envvar="RPC_3", help="A third endpoint of the same chain.")]
WsRpc3 = Annotated[str | None, typer.Option("--ws-rpc-3", envvar="WS_RPC_3", help="Its address for subscriptions.")]
WalletPath = Annotated[
    Path | None,
    typer.Option(
        "--wallet-private-key-path",
        "-w",
        envvar="WALLET_PRIVATE_KEY_PATH",
        help="File with the wallet that signs and pays, as `solana-keygen new` writes it. RAW_WALLET_PRIVATE_KEY may "
        "hold the key instead, and wins. Default: ANCHOR_WALLET, then the Solana CLI's wallet.",
    ),
]
ProgramIds = Annotated[
    Path | None,
    typer.Option(
        "--program-ids",
        envvar="PSYCHE_PROGRAM_IDS",
        help="File of the ids of Psyche's programs on this chain, which the run's owner gives to members, and `psyche "
        "dev deploy` writes. Default: what this version knows of the chain.",
    ),
]
MaxPriorityFee = Annotated[
    int | None,
    typer.Option(
        "--max-priority-fee",
        min=0,
        metavar="LAMPORTS",
        envvar="MAX_PRIORITY_FEE",
        help="The most that a transaction on Solana pays beside its signatures, to be early while the chain is busy: "
        f"what others lately paid, up to this. 0: nothing. Default: {MAX_PRIORITY_LAMPORTS:,}.",
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Make the change without a question; needed where no terminal is.")
]
ARGUMENTS: Final = frozenset({"key", "wish"})  # parameters that are not options


@dataclass(frozen=True, slots=True)
class ChainOptions:
    rpc: str | None = None
    ws_rpc: str | None = None
    rpc_2: str | None = None
    ws_rpc_2: str | None = None
    rpc_3: str | None = None
    ws_rpc_3: str | None = None
    wallet_private_key_path: Path | None = None
    program_ids: Path | None = None
    max_priority_fee: int | None = None

    @property
    def max_priority_lamports(self) -> int:
        return MAX_PRIORITY_LAMPORTS if self.max_priority_fee is None else self.max_priority_fee

    def find_endpoints(self) -> "tuple[Endpoint, ...]":
        """Find the endpoints: the options, their variables, ANCHOR_PROVIDER_URL, or the Solana CLI's configuration."""
        from psyche.backends.solana.cluster import find_endpoints, parse_endpoint, read_cli_config
        from psyche.errors import ConfigError

        pairs = ((self.rpc, self.ws_rpc), (self.rpc_2, self.ws_rpc_2), (self.rpc_3, self.ws_rpc_3))
        if found := find_endpoints([(rpc or "", ws or "") for rpc, ws in pairs], os.environ):
            return found
        if url := os.environ.get("ANCHOR_PROVIDER_URL"):
            return (parse_endpoint(url, flag="ANCHOR_PROVIDER_URL"),)
        if config := read_cli_config():
            return (config.endpoint,)
        raise ConfigError(
            "no chain is named: name one of its RPC endpoints with --rpc URL (or RPC in the environment), for example "
            "--rpc localhost or --rpc devnet"
        )

    def check_program_ids(self) -> None:
        if self.program_ids is not None:
            from psyche.backends.solana.programs.vouching import read_program_ids

            read_program_ids(self.program_ids)

    @property
    def spelling(self) -> "Spelling":
        from psyche.backends.solana.session import Spelling

        words = spell_options({name: getattr(self, name) for name in NAMES})
        wallet = words.pop("wallet_private_key_path", "")
        return Spelling(" ".join(words.values()), wallet)

    def load_wallet(self) -> "Wallet":
        """Load the wallet: RAW_WALLET_PRIVATE_KEY, the option, ANCHOR_WALLET, or that of the Solana CLI."""
        from psyche.backends.solana.cluster import read_cli_config
        from psyche.backends.solana.wallet import RAW_VARIABLE, find_wallet

        path = self.wallet_private_key_path
        if os.environ.get(RAW_VARIABLE) and path and not os.environ.get("WALLET_PRIVATE_KEY_PATH"):
            typer.echo(f"note: {RAW_VARIABLE} is set, so {path} is not used", err=True)
        if path is None and (named := os.environ.get("ANCHOR_WALLET")):
            path = Path(named)
        config = read_cli_config() if path is None else None
        return find_wallet(path, os.environ, config.wallet if config else None)


NAMES: Final = tuple(field.name for field in fields(ChainOptions))


def spell_options(given: Mapping[str, object]) -> dict[str, str]:
    """Write the options that were given, by name, as a shell reads them; what the environment says is left out."""
    return {
        name: f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in given.items()
        if value is not None
        and str(value) not in (os.environ.get(name.upper()), os.environ.get(f"PSYCHE_{name.upper()}"))
    }


def take_options(given: Mapping[str, Any]) -> ChainOptions:
    return ChainOptions(**{name: given[name] for name in NAMES})


def set_signature(
    run: Callable[..., None], function: Callable[..., None], shared: Mapping[str, tuple[object, object]], *,
    instead_of: str,
) -> None:  # fmt: skip
    """Let typer see a command `run` as `function` with the shared options instead of one argument of it.

    The function's arguments come first, then the first shared option, the function's options, and the other ones.
    """
    own = [p for p in inspect.signature(function).parameters.values() if p.name != instead_of]
    first, *others = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
        if name not in {p.name for p in own}
    )
    parameters = [*(p for p in own if p.name in ARGUMENTS), first, *(p for p in own if p.name not in ARGUMENTS)]
    run.__doc__ = function.__doc__
    run.__signature__ = inspect.Signature([*parameters, *others])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in [*parameters, *others]}


def choose_backend(server_addr: str | None, rpc: str | None) -> tuple[str | None, str | None]:
    """Return the server's address or the chain's endpoint, whichever the person wants; the other is None.

    What the command line names wins over what only the environment names."""
    from psyche.errors import ConfigError

    if server_addr and rpc:
        is_server_typed = server_addr != os.environ.get("SERVER_ADDR")
        is_rpc_typed = rpc != os.environ.get("RPC")
        if is_server_typed == is_rpc_typed:
            raise ConfigError(
                "--server-addr and --rpc: a run has one backend; name the one that it has, and unset SERVER_ADDR or "
                "RPC if the environment names the other"
            )
        return (server_addr, None) if is_server_typed else (None, rpc)
    if not server_addr and not rpc:
        raise ConfigError(
            "name the run's backend: --server-addr HOST:PORT for a server, or --rpc URL for a run on Solana"
        )
    return server_addr or None, rpc or None
