"""The options that name a chain and a wallet, and what they stand for. Needs the extra `solana` for wallets alone."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from psyche.backends.solana.amounts import MAX_PRIORITY_LAMPORTS

if TYPE_CHECKING:
    from psyche.backends.port import TargetOptions

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


def take_options(given: dict[str, Any]) -> "TargetOptions":
    """Take what names a run and its keys out of the options of a command."""
    from psyche.backends.port import TargetOptions

    return TargetOptions(**{one.name: given.pop(one.name) for one in fields(TargetOptions) if one.name in given})


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
